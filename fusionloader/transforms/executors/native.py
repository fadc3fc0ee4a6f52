"""Native executors of plans. Imports neither torch, numpy nor Pillow: workers stay small."""

from __future__ import annotations

import functools
import threading

import PIL

from fusionloader import _native
from fusionloader.transforms.plan.stages import Convert, Plan, SplitPlan

MOST_ENCODED_BYTES = 1 << 28
"""Maximum bytes of a file for native decoders; Pillow reads larger ones in pieces."""

Order = tuple[tuple[int, int, int], ...]
"""Nested loops over the elements of a result: size, and steps in the image and in the result.

Without any, the result is channels x height x width.
"""

_START_OF_JPEG = b"\xff\xd8"
_MOST_EXECUTORS = 64  # per thread
_thread = threading.local()


def make_executor(
    plan: Plan,
    pillow_version: str | None = None,
    simd: str | None = None,
    max_pixels: int | None = None,
) -> _native.Executor:
    """Returns an executor of ``plan``; each thread needs its own.

    The executor of a plan whose results differ in size ends with pixels: the caller converts them.
    If the plan works on floats, it ends with these.

    Args:
        plan: plan to run.
        pillow_version: release whose pixels are reproduced; the installed one by default.
        simd: vector instructions to use, one of ``_native.simd_levels()``; by default the widest of
            the processor.
        max_pixels: Pillow's ``MAX_IMAGE_PIXELS``: encoded images with more are left to Pillow.

    Raises:
        ValueError: the plan is invalid.
    """
    sized = plan.height is not None and plan.width is not None
    convert = plan.convert if sized or plan.works_on_floats else None
    tail = None
    if isinstance(plan, SplitPlan):
        tail = plan.device_stages, plan.program_bytes, plan.work_bytes
    executor = _native.Executor(
        stages=plan.stages,
        convert=(convert.element_type, convert.table) if convert else None,
        channels=plan.channels,
        result_channels=plan.result_channels,
        height=plan.height or 0,
        width=plan.width or 0,
        fast_decode=plan.decode == "fast",
        strict=plan.strict,
        tensor_from=plan.tensor_from,
        copied_from=plan.copied_from,
        vertical_first=_when_vertical_first(pillow_version),
        simd=simd,
        device_tail=tail,
    )
    executor.max_pixels = max_pixels
    return executor


def file_decoder(max_pixels: int | None = None) -> _native.Executor:
    """Returns this thread's executor for the sizes and the pixels of whole files.

    It leaves images with more than ``max_pixels`` to Pillow.
    """
    return sized_executor(3, 0, 0, max_pixels=max_pixels)


def sized_executor(
    channels: int,
    height: int,
    width: int,
    convert: Convert | None = None,
    max_pixels: int | None = None,
    order: Order = (),
) -> _native.Executor:
    """Returns this thread's executor without stages, for results of that size.

    It takes operations with each image, and leaves images with more than ``max_pixels`` to Pillow.
    Making an executor takes 3 us, and longer with a conversion.
    """
    made: dict[object, _native.Executor] = _thread.__dict__.setdefault("executors", {})
    key = channels, height, width, convert, max_pixels, order
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
            vertical_first=_when_vertical_first(None),
            order=order,
        )
        found.max_pixels = max_pixels
    return found


def jpeg_size(executor: _native.Executor, encoded: bytes) -> tuple[int, int] | None:
    """Returns width and height; ``None`` if it is no JPEG that the native decoder reads."""
    return executor.image_size(encoded) if bytes(encoded[:2]) == _START_OF_JPEG else None


@functools.cache
def _when_vertical_first(pillow_version: str | None) -> str:
    """Returns when that Pillow runs a resize's vertical pass first, as in csrc/resize/filter.hpp.

    By default the Pillow that is imported. It may have no metadata, or that of another package.
    """
    version = (pillow_version or PIL.__version__).split(".")
    release = tuple(int(part) for part in version[:2])
    return "cheaper" if release >= (13, 0) else "tall" if release >= (12, 3) else "never"
