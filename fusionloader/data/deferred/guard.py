"""Replacements of other libraries' functions, which never raise where the originals would not.

An attempt does an operation natively or records it. It returns ``PLAIN`` for an operation that it
leaves to the library's function. An attempt that raises has a bug, or was given bad arguments, and
the library's function is called then as well. If that function raises, the caller gets its error.
If it does not, the bug is counted: the loader logs one warning for each function, and ``explain()``
lists them. ``FUSIONLOADER_STRICT=1`` in the environment raises the attempt's error instead.

An attempt that raises must leave its arguments, and the generators that it has drawn from, as the
library's function needs them.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from fusionloader.data.deferred.counts import counts
from fusionloader.system.training_signals import raised_by_handler

Function = Callable[..., Any]

PLAIN: Final = object()
"""Returned by an attempt that leaves the operation to the library."""

_STRICT = "FUSIONLOADER_STRICT"
_PACKAGE = Path(__file__).parents[2]


def guarded(attempt: Function, plain: Function, name: str = "") -> Function:
    """Returns a function that calls ``attempt``, and ``plain`` if that returns ``PLAIN`` or raises.

    Args:
        attempt: called first, with all arguments.
        plain: the library's function.
        name: name of the operation in the warning; by default that of ``plain``.
    """
    name = name or f"{plain.__module__}.{plain.__qualname__}"

    @functools.wraps(plain)
    def guard(*arguments: Any, **named: Any) -> Any:
        try:
            made = attempt(*arguments, **named)
        except Exception as error:
            if comes_from_elsewhere(error):
                raise
            failure = error
        else:
            return plain(*arguments, **named) if made is PLAIN else made
        try:
            made = plain(*arguments, **named)
            _note(name, failure)
            return made
        finally:
            del failure  # its traceback refers to this frame

    return guard


def call_library(function: Function, *arguments: Any, **named: Any) -> Any:
    """Calls a library's function within an attempt; guards let its errors pass."""
    return function(*arguments, **named)


_PASSING: Final = (guarded(len, len).__code__, call_library.__code__)


def comes_from_elsewhere(error: Exception) -> bool:
    """Whether a library's function raised the error, or a signal handler that ran meanwhile."""
    assert error.__traceback__ is not None
    frames = _frames(error.__traceback__.tb_next)
    passes = any(frame.tb_frame.f_code in _PASSING for frame in frames)
    return passes or raised_by_handler(error, signal.valid_signals())


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _note(name: str, error: Exception) -> None:
    if os.environ.get(_STRICT, "0") not in ("", "0"):
        raise error
    counts().failed.setdefault(name, f"{type(error).__name__}: {error} ({_place(error)})")


def _place(error: Exception) -> str:
    """Returns the innermost line of this package that an error went through."""
    lines = [
        (Path(frame.tb_frame.f_code.co_filename), frame.tb_lineno)
        for frame in _frames(error.__traceback__)
    ]
    file, line = [each for each in lines if _PACKAGE in each[0].parents][-1]
    return f"fusionloader/{file.relative_to(_PACKAGE)}:{line}"
