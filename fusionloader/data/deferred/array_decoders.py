"""OpenCV's and torchvision's JPEG decoders, replaced for files that give the same pixels natively.

They return arrays and tensors instead of Pillow's images.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fusionloader._native import RunStatus
from fusionloader.data.deferred import activity
from fusionloader.data.deferred.counts import counted_read, counts, timed_decoding
from fusionloader.data.deferred.formats import NOT_NATIVE
from fusionloader.data.deferred.guard import PLAIN, guarded
from fusionloader.data.deferred.pillow import Argument
from fusionloader.transforms.executors.native import file_decoder

Order = Literal["RGB", "BGR"]
Pixels = npt.NDArray[np.uint8]

# cv2.IMREAD_UNCHANGED, _COLOR, _IGNORE_ORIENTATION, _COLOR_RGB; torchvision's ImageReadMode.
_UNCHANGED, _COLOR, _AS_STORED, _COLOR_RGB = -1, 1, 128, 256
_VISION_UNCHANGED, _VISION_RGB = 0, 3

# EXIF: the tag of the orientation, the type of its value, and the first bytes of a TIFF header.
_ORIENTATION, _SHORT = 0x0112, 3
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
# JPEG: markers.
_START_OF_SCAN = 0xDA
_NO_FRAMES = (0xC4, 0xC8, 0xCC)  # markers between C0 and CF that begin no frame


def imread(*arguments: Argument, **named: Argument) -> Any:
    if not activity.is_active() or not arguments or named:
        return PLAIN
    made = _decode_for_opencv(_read(arguments[0]), arguments[1:])
    return PLAIN if made is None else made


def imdecode(*arguments: Argument, **named: Argument) -> Any:
    if not activity.is_active() or len(arguments) != 2 or named:
        return PLAIN
    made = _decode_for_opencv(_view_bytes(arguments[0]), arguments[1:])
    return PLAIN if made is None else made


def _decode_for_opencv(encoded: memoryview | None, flags: tuple[Argument, ...]) -> Pixels | None:
    flag = flags[0] if flags else _COLOR
    if encoded is None or len(flags) > 1 or type(flag) is not int:
        return None
    as_stored = flag == _UNCHANGED or bool(flag & _AS_STORED)
    kind = flag if flag == _UNCHANGED else flag & ~_AS_STORED
    if kind not in (_UNCHANGED, _COLOR, _COLOR_RGB):
        return None
    header = _read_jpeg_header(encoded)
    if header is None or not (as_stored or header.is_upright):
        return None
    if kind == _UNCHANGED and header.components != 3:
        return None
    return _decoded(encoded, "RGB" if kind == _COLOR_RGB else "BGR")


class DecodingOperator:
    """Replaces ``torch.ops.image.decode_jpeg`` or ``decode_image``, which torchvision.io calls."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self._call = guarded(_decode_for_torchvision, original, f"torch.ops.image.{original}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __call__(self, data: Argument, mode: int = _VISION_UNCHANGED, turned: bool = False) -> Any:
        """Returns uint8 pixels, channels x height x width."""
        return self._call(data, mode, turned)


def _decode_for_torchvision(data: Argument, mode: int, turned: bool) -> Any:
    if not activity.is_active() or type(data) is not torch.Tensor or data.device.type != "cpu":
        return PLAIN
    if data.dtype is not torch.uint8 or data.dim() != 1 or not data.is_contiguous():
        return PLAIN
    levels: Any = data.numpy()
    encoded = memoryview(levels)
    header = _read_jpeg_header(encoded)
    if header is None or (turned and not header.is_upright):
        return PLAIN
    if mode != _VISION_RGB and (mode, header.components) != (_VISION_UNCHANGED, 3):
        return PLAIN
    pixels = _decoded(encoded, "RGB")
    return PLAIN if pixels is None else torch.from_numpy(pixels).permute(2, 0, 1)


def _decoded(encoded: memoryview, order: Order) -> Pixels | None:
    """Returns pixels, height x width x 3; ``None`` for a file that is left to the library."""
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


def _read(path: Argument) -> memoryview | None:
    """Returns a file's bytes; ``None`` if it cannot be read, so that the library raises."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    try:
        with open(path, "rb") as file:
            return memoryview(counted_read(file.read))
    except (OSError, ValueError):
        return None


def _view_bytes(data: Argument) -> memoryview | None:
    if not isinstance(data, np.ndarray):
        return None
    plain = data.flags.c_contiguous and data.ndim == 1 and data.dtype == np.uint8
    levels: Any = data
    return memoryview(levels) if plain else None


@dataclass(frozen=True, slots=True)
class _JpegHeader:
    """The parts of a JPEG header that libraries depend on.

    Attributes:
        components: number of color components, 1 to 4.
        is_upright: whether EXIF asks for no turn or flip.
    """

    components: int
    is_upright: bool


def _read_jpeg_header(encoded: memoryview) -> _JpegHeader | None:
    """Returns the header of a JPEG file; ``None`` for any other content."""
    if bytes(encoded[:2]) != b"\xff\xd8":
        return None
    place, components, upright = 2, 0, True
    while place + 10 <= len(encoded) and encoded[place] == 0xFF:
        marker = encoded[place + 1]
        length = encoded[place + 2] << 8 | encoded[place + 3]
        if marker == _START_OF_SCAN:
            return _JpegHeader(components, upright) if components else None
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            components = encoded[place + 9]
        elif marker == 0xE1 and bytes(encoded[place + 4 : place + 8]) == b"Exif":
            upright = upright and _is_upright(bytes(encoded[place + 4 : place + 2 + length]))
        place += 2 + length
    return None


def _is_upright(segment: bytes) -> bool:
    """Whether the first EXIF directory has no orientation, or orientation 1.

    ``False`` for a damaged directory, because libraries treat it differently.
    """
    tiff = segment[6:]
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return False
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        entries = [
            struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * number)
            for number in range(count)
        ]
    except struct.error:
        return False
    return all(entry[1:] == (_SHORT, 1, 1) for entry in entries if entry[0] == _ORIENTATION)
