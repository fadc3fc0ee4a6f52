"""A plan as a native executor. Imports neither torch nor numpy nor Pillow: workers stay small."""

from __future__ import annotations

import functools
import threading
from importlib import metadata

from fusionloader import _native
from fusionloader.transforms.plan.stages import Convert, Plan

MOST_ENCODED_BYTES = 1 << 28
"""Bytes of a file that native decoders are given; Pillow takes larger ones, read in pieces."""

_START_OF_JPEG = b"\xff\xd8"
_MOST_EXECUTORS = 64  # of a thread
_thread = threading.local()


def make_executor(
    plan: Plan,
    pillow_version: str | None = None,
    simd: str | None = None,
    max_pixels: int | None = None,
) -> _native.Executor:
    """Returns the executor of ``plan``; one per thread.

    ``pillow_version`` is the release whose pixels are reproduced (the installed one by default),
    ``simd`` the vector instructions to use, one of ``_native.simd_levels()`` (by default the widest
    that the processor has), ``max_pixels`` Pillow's ``MAX_IMAGE_PIXELS``: encoded images that have
    more are left to Pillow. Raises ValueError for a plan that makes no sense. A plan whose results
    differ in size ends with pixels: its conversion is left to the caller.
    """
    sized = plan.height is not None and plan.width is not None
    convert = plan.convert if sized else None
    executor = _native.Executor(
        stages=plan.stages,
        convert=(convert.element_type, convert.table) if convert else None,
        channels=plan.channels,
        result_channels=plan.result_channels,
        height=plan.height or 0,
        width=plan.width or 0,
        fast_decode=plan.decode == "fast",
        strict=plan.strict,
        vertical_first_allowed=_resizes_vertically_first(pillow_version),
        simd=simd,
    )
    executor.max_pixels = max_pixels
    return executor


def file_decoder(max_pixels: int | None = None) -> _native.Executor:
    """Returns this thread's executor for whole files: their sizes and all of their pixels.

    With ``max_pixels`` one that leaves images that have more to Pillow.
    """
    return executor_of_size(3, 0, 0, max_pixels=max_pixels)


def executor_of_size(
    channels: int,
    height: int,
    width: int,
    convert: Convert | None = None,
    max_pixels: int | None = None,
) -> _native.Executor:
    """Returns this thread's executor without stages, for results of that size.

    With ``max_pixels`` it leaves images that have more to Pillow. Its operations are given with
    each image. Making one takes 3 us, and more with a conversion.
    """
    made: dict[object, _native.Executor] = _thread.__dict__.setdefault("executors", {})
    key = channels, height, width, convert, max_pixels
    found = made.get(key)
    if found is None:
        if len(made) >= _MOST_EXECUTORS:
            made.clear()
        found = made[key] = _native.Executor(
            stages=(),
            convert=None if convert is None else (convert.element_type, convert.table),
            channels=3,
            result_channels=channels,
            height=height,
            width=width,
            fast_decode=False,
            strict=True,
            vertical_first_allowed=_resizes_vertically_first(None),
        )
        found.max_pixels = max_pixels
    return found


def jpeg_size(executor: _native.Executor, encoded: bytes) -> tuple[int, int] | None:
    """Returns width and height; ``None`` for what is not a JPEG that the native decoder reads."""
    return executor.image_size(encoded) if bytes(encoded[:2]) == _START_OF_JPEG else None


@functools.cache
def _resizes_vertically_first(pillow_version: str | None) -> bool:
    """Whether that Pillow may run the vertical pass of a resize first, as 13.0 began to."""
    version = pillow_version or metadata.version("pillow")
    return int(version.split(".")[0]) >= 13
