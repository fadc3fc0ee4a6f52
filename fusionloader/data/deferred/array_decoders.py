"""Other libraries' decoders, replaced where the native one gives their pixels.

They return arrays and tensors instead of Pillow's images. JPEG and PNG files are decoded natively.
WebP is not, because the libraries decode it as fast, by the same code.
"""

from __future__ import annotations

import functools
import io
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fusionloader._native import OpenedJpeg, RunStatus
from fusionloader.data.deferred import activity
from fusionloader.data.deferred.core import deferred_core
from fusionloader.data.deferred.counts import counted_read, counts, timed_decoding
from fusionloader.data.deferred.formats import NOT_NATIVE
from fusionloader.data.deferred.guard import PLAIN, Function, call_library, guarded
from fusionloader.data.deferred.headers import UPRIGHT, Format, Header, read_header
from fusionloader.data.deferred.opening import JPEG_SUFFIXES
from fusionloader.data.deferred.pillow import Argument
from fusionloader.data.deferred.tensors.deferred_tensor import defer, defer_pixels
from fusionloader.data.deferred.unparsed import is_transparent
from fusionloader.transforms.executors.native import MOST_ENCODED_BYTES, file_decoder
from fusionloader.transforms.plan.stages import Convert

Pixels = npt.NDArray[np.uint8]

# cv2.IMREAD_UNCHANGED, _GRAYSCALE, _COLOR, _IGNORE_ORIENTATION, _COLOR_RGB.
_UNCHANGED, _GRAYSCALE, _COLOR, _AS_STORED, _COLOR_RGB = -1, 0, 1, 128, 256
# ImageReadMode of torchvision and torchcodec.
_MODE_UNCHANGED, _MODE_GRAY, _MODE_RGB, _MODE_RGB_ALPHA = 0, 1, 3, 4
_MODES = {_MODE_GRAY: 1, _MODE_RGB: 3, _MODE_RGB_ALPHA: 4}  # channels
# torchcodec's codes of the elements' type, of which "auto" is that of the file.
_UINT8, _AUTO = 0, 2

_OPENED = "_fusionloader_opened"  # attribute of torchcodec's tensor of a file's bytes
_UPRIGHT_RGB = Header("JPEG", 3, UPRIGHT)
_EXIF_MARKER = b"\xff\xe1"

# What each orientation of EXIF takes: a transposition, and flips along these dimensions.
_TURNS: dict[int, tuple[bool, tuple[int, ...]]] = {
    2: (False, (-1,)),
    3: (False, (-2, -1)),
    4: (False, (-2,)),
    5: (True, ()),
    6: (True, (-1,)),
    7: (True, (-2, -1)),
    8: (True, (-2,)),
}
_FLIP_CODES = {(-2,): 0, (-1,): 1, (-2, -1): -1}  # OpenCV's


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
    header = read_header(encoded)
    orientation = UPRIGHT if as_stored or header is None else header.orientation
    if header is None or orientation is None:
        return None
    channels = header.channels if kind in (_UNCHANGED, _GRAYSCALE) else 3
    if kind == _GRAYSCALE and channels != 1 or channels == 4:
        return None
    if kind not in (_UNCHANGED, _GRAYSCALE, _COLOR, _COLOR_RGB):
        return None
    size = _read_size(encoded)
    if size is None:
        return None
    pixels = np.empty(size if channels == 1 else (*size, channels), np.uint8)
    levels = pixels.reshape(*size, channels)
    if not _decode(encoded, levels, bgr=kind != _COLOR_RGB):
        return None
    counts().results["array"] += 1
    cv2 = sys.modules["cv2"]
    transposed, flips = _TURNS.get(orientation, (False, ()))
    pixels = cv2.transpose(pixels) if transposed else pixels
    return cv2.flip(pixels, _FLIP_CODES[flips]) if flips else pixels


class VisionOperator:
    """Replaces one of the operators ``torch.ops.image.decode_*``, which torchvision.io calls."""

    def __init__(self, original: Any, formats: tuple[Format, ...]) -> None:
        self._original = original
        self._formats = formats
        self._call = guarded(self._attempt, original, f"torch.ops.image.{original}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __call__(self, data: Argument, mode: int = _MODE_UNCHANGED, turned: bool = False) -> Any:
        """Returns uint8 pixels, channels x height x width."""
        return self._call(data, mode, turned)

    def _attempt(self, data: Argument, mode: int, turned: bool) -> Any:
        encoded = _view_encoded(data)
        header = None if encoded is None else read_header(encoded)
        if encoded is None or header is None or header.format not in self._formats:
            return PLAIN
        if header.has_palette and mode == _MODE_UNCHANGED:
            return PLAIN  # torchvision gives the indices
        return _decode_tensor(encoded, header, mode, header.orientation if turned else UPRIGHT)


def vision_operator(*formats: Format) -> Callable[[Any], VisionOperator]:
    """Returns what replaces an operator of torchvision that decodes files of these formats."""
    return lambda original: VisionOperator(original, formats)


def codec_operator(codec: Format) -> Callable[[Function], Function]:
    """Returns what replaces one of torchcodec's operators, which its decoders call."""

    def attempt(data: Argument, mode: int, elements: int = _UINT8) -> Any:
        opened: OpenedJpeg | None = getattr(data, _OPENED, None)
        encoded = _view_encoded(data) if opened is None else memoryview(opened.encoded)
        header: Header | None = _UPRIGHT_RGB
        if opened is None:
            header = None if encoded is None else read_header(encoded)
        if encoded is None or header is None or header.format != codec:
            return PLAIN
        if elements not in (_UINT8, _AUTO):
            return PLAIN
        return _decode_tensor(encoded, header, mode, header.orientation, opened)

    return lambda original: guarded(attempt, original, f"torch.ops.{original}")


def reading(original: Function) -> Function:
    """Returns what replaces torchcodec's function that makes a tensor of a file or its bytes.

    The tensor of an upright color JPEG has what is known of the file as an attribute.
    """
    has_warned = False

    def viewing(encoded: bytes) -> torch.Tensor:
        """Does as the original, without the filter for a warning that torch gives once."""
        nonlocal has_warned
        always = torch.is_warn_always_enabled()
        if has_warned and not always:
            return torch.frombuffer(encoded, dtype=torch.uint8)
        data: torch.Tensor = call_library(original, encoded)
        has_warned = has_warned or not always
        return data

    def attempt(source: Argument) -> Any:
        if not activity.is_active():
            return PLAIN
        opened = None
        if isinstance(source, (str, Path)) and str(source).endswith(JPEG_SUFFIXES):
            began = time.perf_counter()
            opened = OpenedJpeg.open(source, MOST_ENCODED_BYTES)
            counts().read_seconds += time.perf_counter() - began
            counts().read_bytes += 0 if opened is None else len(opened.encoded)
        elif type(source) is bytes:
            opened = OpenedJpeg.of(source)
        if opened is None:
            return PLAIN
        opened.close()
        data = viewing(opened.encoded)
        if opened.components == 3 and _EXIF_MARKER not in opened.encoded[: opened.header_bytes]:
            setattr(data, _OPENED, opened)
        return data

    guard = guarded(attempt, original)

    @functools.wraps(original)
    def read(source: Argument) -> Any:
        return source if type(source) is torch.Tensor else guard(source)

    return read


def detecting(original: Function) -> Function:
    """Returns what replaces torchcodec's ``_detect_image_format``."""

    @functools.wraps(original)
    def detect(data: Argument) -> Any:
        return original(data) if getattr(data, _OPENED, None) is None else "jpeg"

    return detect


_FLOATS = ("torch", "float", "rgb")  # as WebDataset describes them
_FRACTIONS = Convert("float32", (np.arange(256).astype(np.float32) / 255.0).tobytes() * 3)


def handle_image(self: Argument, key: Argument, data: Argument) -> Any:
    """Replaces WebDataset's ``ImageHandler.__call__``, for tensors of floats."""
    imagespecs = sys.modules["webdataset.autodecode"].imagespecs
    if imagespecs.get(self.imagespec) != _FLOATS or type(data) is not bytes:
        return PLAIN
    if not activity.is_active():
        return PLAIN
    if re.sub(r".*[.]", "", key).lower() not in self.extensions:
        return PLAIN
    image = call_library(Image.open, io.BytesIO(data))
    if image.mode not in ("RGB", "L") or image.format not in ("JPEG", "PNG", "WEBP"):
        return PLAIN
    core = None if is_transparent(image) else deferred_core(image.convert("RGB"))
    if core is None:
        return PLAIN
    made = torch.empty((3, *core.size[::-1]), dtype=torch.float32, device="cpu")
    core.write(_FRACTIONS, made)
    counts().results["tensor"] += 1
    return made


def _decode_tensor(
    encoded: memoryview,
    header: Header,
    mode: int,
    orientation: int | None,
    opened: OpenedJpeg | None = None,
) -> Any:
    """Returns uint8 pixels, channels x height x width, turned upright; or ``PLAIN``."""
    channels = header.channels if mode == _MODE_UNCHANGED else _MODES.get(mode)
    # A single channel or alpha is not made of others here.
    if channels is None or orientation is None or channels not in (3, header.channels):
        return PLAIN
    if header.format == "JPEG" and channels == 3 and orientation == UPRIGHT:
        deferred = defer(encoded, opened)
        if deferred is not None:
            return deferred
    size = _read_size(encoded)
    if size is None:
        return PLAIN
    made = torch.empty((*size, channels), dtype=torch.uint8, device="cpu")
    pixels: Any = made.numpy()
    if not _decode(encoded, pixels):
        return PLAIN
    if channels == 3 and orientation == UPRIGHT and header.format == "PNG":
        deferred = defer_pixels(pixels)
        if deferred is not None:
            return deferred
    counts().results["tensor"] += 1
    planes = made.permute(2, 0, 1)
    transposed, flips = _TURNS.get(orientation, (False, ()))
    planes = planes.transpose(-1, -2) if transposed else planes
    return planes.flip(flips) if flips else planes


def _read_size(encoded: memoryview) -> tuple[int, int] | None:
    """Returns height and width; ``None`` for a file that is left to the library."""
    size = file_decoder().image_size(encoded)
    if size is None:
        counts().left[NOT_NATIVE] += 1
        return None
    return size[1], size[0]


def _decode(encoded: memoryview, pixels: Pixels, bgr: bool = False) -> bool:
    """Decodes to pixels, height x width x channels; false for a file that is left to the library.

    Args:
        encoded: the file.
        pixels: written.
        bgr: whether blue is the first of three channels.
    """
    with timed_decoding():
        status = file_decoder().decode(encoded, pixels.data, bgr=bgr)
    if status is not RunStatus.OK:
        counts().left[NOT_NATIVE] += 1
        return False
    counts().files += 1
    return True


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


def _view_encoded(data: Argument) -> memoryview | None:
    """Returns the bytes in a tensor; ``None`` where images are not deferred, or for other data."""
    if not activity.is_active() or type(data) is not torch.Tensor or data.device.type != "cpu":
        return None
    if data.dtype is not torch.uint8 or data.dim() != 1 or not data.is_contiguous():
        return None
    levels: Any = data.numpy()
    return memoryview(levels)
