"""OpenCV's and torchvision's decoders of JPEG files, where their pixels are ours."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fusionloader._native import RunStatus
from fusionloader.data.deferred import activity
from fusionloader.data.deferred.counts import counted_read, counts, timed_decoding
from fusionloader.data.deferred.decoders.jpeg_header import read_jpeg_header
from fusionloader.data.deferred.decoding import NOT_NATIVE
from fusionloader.data.deferred.guard import PLAIN, guarded
from fusionloader.data.deferred.pillow import Argument
from fusionloader.transforms.executors.native import file_decoder

Order = Literal["RGB", "BGR"]
Pixels = npt.NDArray[np.uint8]

# cv2.IMREAD_UNCHANGED, _COLOR, _IGNORE_ORIENTATION, _COLOR_RGB; torchvision's ImageReadMode.
_UNCHANGED, _COLOR, _AS_STORED, _COLOR_RGB = -1, 1, 128, 256
_VISION_UNCHANGED, _VISION_RGB = 0, 3


def imread(*arguments: Argument, **named: Argument) -> Any:
    """``cv2.imread``."""
    if not activity.is_active() or not arguments or named:
        return PLAIN
    made = _of_opencv(_content(arguments[0]), arguments[1:])
    return PLAIN if made is None else made


def imdecode(*arguments: Argument, **named: Argument) -> Any:
    """``cv2.imdecode``."""
    if not activity.is_active() or len(arguments) != 2 or named:
        return PLAIN
    made = _of_opencv(_bytes_of(arguments[0]), arguments[1:])
    return PLAIN if made is None else made


def _of_opencv(encoded: memoryview | None, flags: tuple[Argument, ...]) -> Pixels | None:
    flag = flags[0] if flags else _COLOR
    if encoded is None or len(flags) > 1 or type(flag) is not int:
        return None
    as_stored = flag == _UNCHANGED or bool(flag & _AS_STORED)
    kind = flag if flag == _UNCHANGED else flag & ~_AS_STORED
    if kind not in (_UNCHANGED, _COLOR, _COLOR_RGB):
        return None
    header = read_jpeg_header(encoded)
    if header is None or not (as_stored or header.is_upright):
        return None
    if kind == _UNCHANGED and header.components != 3:
        return None
    return _decoded(encoded, "RGB" if kind == _COLOR_RGB else "BGR")


class DecodingOperator:
    """``torch.ops.image.decode_jpeg`` or ``decode_image``, which torchvision.io calls."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self._call = guarded(_of_torchvision, original, f"torch.ops.image.{original}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __call__(self, data: Argument, mode: int = _VISION_UNCHANGED, turned: bool = False) -> Any:
        """Returns channels x height x width, uint8."""
        return self._call(data, mode, turned)


def _of_torchvision(data: Argument, mode: int, turned: bool) -> Any:
    if not activity.is_active() or type(data) is not torch.Tensor or data.device.type != "cpu":
        return PLAIN
    if data.dtype is not torch.uint8 or data.dim() != 1 or not data.is_contiguous():
        return PLAIN
    levels: Any = data.numpy()
    encoded = memoryview(levels)
    header = read_jpeg_header(encoded)
    if header is None or (turned and not header.is_upright):
        return PLAIN
    if mode != _VISION_RGB and (mode, header.components) != (_VISION_UNCHANGED, 3):
        return PLAIN
    pixels = _decoded(encoded, "RGB")
    return PLAIN if pixels is None else torch.from_numpy(pixels).permute(2, 0, 1)


def _decoded(encoded: memoryview, order: Order) -> Pixels | None:
    """Returns height x width x 3, or ``None`` for a file that is left to the library."""
    decoder = file_decoder()
    size = decoder.image_size(encoded)
    if size is not None:
        pixels = np.empty((size[1], size[0], 3), np.uint8)
        with timed_decoding():
            status = decoder.decode(encoded, pixels.data, bgr=order == "BGR")
        if status is RunStatus.OK:
            counts().files += 1
            counts().results["array"] += 1
            return pixels
    counts().left[NOT_NATIVE] += 1
    return None


def _content(path: Argument) -> memoryview | None:
    """Returns a file's bytes; ``None`` where the library has to say what is wrong."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    try:
        with open(path, "rb") as file:
            return memoryview(counted_read(file.read))
    except (OSError, ValueError):
        return None


def _bytes_of(data: Argument) -> memoryview | None:
    if not isinstance(data, np.ndarray):
        return None
    plain = data.flags.c_contiguous and data.ndim == 1 and data.dtype == np.uint8
    levels: Any = data
    return memoryview(levels) if plain else None
