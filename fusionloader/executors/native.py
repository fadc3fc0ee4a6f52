"""A plan as a native executor. Imports neither torch nor numpy nor Pillow: workers stay small."""

from __future__ import annotations

import functools
from importlib import metadata

from fusionloader import _native
from fusionloader.plan.stages import Plan


def make_executor(
    plan: Plan, pillow_version: str | None = None, simd: str | None = None
) -> _native.Executor:
    """Returns the executor of ``plan``; one per thread.

    ``pillow_version`` is the release whose pixels are reproduced (the installed one by default),
    ``simd`` the vector instructions to use, one of ``_native.simd_levels()`` (by default the widest
    that the processor has). Raises ValueError for a plan that makes no sense. A plan whose results
    differ in size ends with pixels: its conversion is left to the caller.
    """
    sized = plan.height is not None and plan.width is not None
    convert = plan.convert if sized else None
    return _native.Executor(
        stages=plan.stages,
        convert=(convert.element_type, convert.table) if convert else None,
        channels=plan.channels,
        result_channels=plan.result_channels,
        height=plan.height or 0,
        width=plan.width or 0,
        fast_decode=plan.decode == "fast",
        strict=plan.strict,
        vertical_first_allowed=resizes_vertically_first(pillow_version),
        simd=simd,
    )


@functools.cache
def resizes_vertically_first(pillow_version: str | None = None) -> bool:
    """Whether that Pillow may run the vertical pass of a resize first, as 13.0 began to."""
    version = pillow_version or metadata.version("pillow")
    return int(version.split(".")[0]) >= 13
