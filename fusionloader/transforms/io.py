"""Decoders for any program: whole images, and windows of them, with Pillow's pixels.

All functions release the GIL while they decode, so that threads decode in parallel. Pillow decodes
what the native decoder does not (other formats, CMYK, damaged files), or raises.
"""

from __future__ import annotations

import io
from typing import Literal, get_args, overload

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fusionloader._native import Executor, RunStatus
from fusionloader.transforms.executors.native import file_decoder, sized_executor
from fusionloader.transforms.plan.stages import Convert, Operation, PillowFilter

__all__ = ["decode_jpeg", "decode_window", "encoded_size"]

Encoded = bytes | bytearray | memoryview
Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]

_PLANAR = Convert("uint8", bytes(range(256)) * 3)
_BLACK = (0, 0, 0)


def encoded_size(encoded: Encoded) -> tuple[int, int]:
    """Returns the width and height of an encoded image, from its header alone.

    Raises:
        PIL.UnidentifiedImageError: ``encoded`` is not an image.
    """
    found = file_decoder(Image.MAX_IMAGE_PIXELS).image_size(encoded)
    if found is not None:
        return found
    with Image.open(io.BytesIO(encoded)) as image:
        return image.size


@overload
def decode_jpeg(encoded: Encoded, *, tensor: Literal[False] = False) -> Pixels: ...


@overload
def decode_jpeg(encoded: Encoded, *, tensor: Literal[True]) -> torch.Tensor: ...


def decode_jpeg(encoded: Encoded, *, tensor: bool = False) -> Pixels | torch.Tensor:
    """Returns the RGB pixels of ``Image.open(...).convert("RGB")``.

    Args:
        encoded: bytes of a JPEG, PNG or WebP file; Pillow decodes other formats.
        tensor: whether to return a tensor, 3 x height x width, instead of an array, height x width
            x 3. Both are contiguous and uint8.

    Raises:
        PIL.UnidentifiedImageError: ``encoded`` is not an image.
        OSError: the image is cut off or so damaged that Pillow refuses it.
    """
    return _decoded(encoded, encoded_size(encoded), (), tensor)


@overload
def decode_window(
    encoded: Encoded,
    box: Box,
    size: tuple[int, int] | None = None,
    *,
    filter: PillowFilter = "bilinear",
    tensor: Literal[False] = False,
) -> Pixels: ...


@overload
def decode_window(
    encoded: Encoded,
    box: Box,
    size: tuple[int, int] | None = None,
    *,
    filter: PillowFilter = "bilinear",
    tensor: Literal[True],
) -> torch.Tensor: ...


def decode_window(
    encoded: Encoded,
    box: Box,
    size: tuple[int, int] | None = None,
    *,
    filter: PillowFilter = "bilinear",
    tensor: bool = False,
) -> Pixels | torch.Tensor:
    """Returns a window of an image, resized; of a JPEG no more than the window is decoded.

    The pixels are those of ``Image.open(...).convert("RGB").crop(box).resize(size)``.

    Args:
        encoded: as in ``decode_jpeg``.
        box: left, upper, right and lower edge in pixels; pixels beyond the image are black.
        size: width and height of the result in pixels; ``None`` for those of the window.
        filter: filter of the resize: "box", "bilinear", "hamming", "bicubic" or "lanczos".
        tensor: as in ``decode_jpeg``.

    Raises:
        ValueError: the box or the size is empty, or the filter unknown.
        PIL.UnidentifiedImageError: ``encoded`` is not an image.
        OSError: the image is cut off or so damaged that Pillow refuses it.
    """
    left, upper, right, lower = box
    width, height = right - left, lower - upper
    if width < 1 or height < 1:
        raise ValueError(f"the box {box} is empty: it is left, upper, right, lower")
    if filter not in get_args(PillowFilter):
        raise ValueError(f"filter should be one of {get_args(PillowFilter)}, not {filter!r}")
    operations: list[Operation] = [("crop", left, upper, width, height, _BLACK)]
    if size is not None and size != (width, height):
        if min(size) < 1:
            raise ValueError(f"the size {size} is empty: it is width, height")
        operations.append(("resize", *size, filter))
    return _decoded(encoded, size or (width, height), tuple(operations), tensor)


def _decoded(
    encoded: Encoded, size: tuple[int, int], operations: tuple[Operation, ...], tensor: bool
) -> Pixels | torch.Tensor:
    width, height = size
    if tensor:
        planes = torch.empty((3, height, width), dtype=torch.uint8, device="cpu")
        runner = sized_executor(3, height, width, _PLANAR, Image.MAX_IMAGE_PIXELS)
        _run(runner, encoded, operations, planes.numpy())
        return planes
    pixels = np.empty((height, width, 3), np.uint8)
    if not operations:
        decoder = file_decoder(Image.MAX_IMAGE_PIXELS)
        if decoder.decode(encoded, pixels.data) is RunStatus.OK:
            return pixels
        return _by_pillow(encoded)
    runner = sized_executor(3, height, width, max_pixels=Image.MAX_IMAGE_PIXELS)
    _run(runner, encoded, operations, pixels)
    return pixels


def _run(
    runner: Executor, encoded: Encoded, operations: tuple[Operation, ...], out: Pixels
) -> None:
    memory = out.reshape(-1).data
    if runner.run_with(encoded, operations, memory) is RunStatus.OK:
        return
    runner.run_pixels_with(_by_pillow(encoded).data, operations, memory)


def _by_pillow(encoded: Encoded) -> Pixels:
    with Image.open(io.BytesIO(encoded)) as image:
        return np.array(image.convert("RGB"))
