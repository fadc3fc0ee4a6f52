"""Raises an exception at the n-th step that this thread makes in chosen files of the package.

A step is a call, a return, or a line. Count the steps of an action first, then run
the action once for each of some positions:

    count = Steps("sharing/jobs").count(action)
    for position in sampled(count, 20, seed=0):
        steps = Steps("sharing/jobs")
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), action)
        ...  # steps.place says where it was raised, None if the action made fewer steps

The exception is raised once. Forked children and other threads are not affected. In a finalizer
(``__del__``) it comes at the first step behind it.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

import fusionloader
from fusionloader.system.finalizers import Finalizer

PACKAGE = Path(fusionloader.__file__).parent
T = TypeVar("T")

CALLS = ("call", "c_call")
"""Before each call that is made in the files: of Python functions, and of C functions.

``"c_return"`` is behind each call of a C function, whose result is lost then; this is where Python
raises KeyboardInterrupt. ``"return"`` is behind each call of a Python function: before Python 3.11
it comes there as well, later only if the call has ``*`` or is made by C. ``"line"`` is before each
line.
"""
needs_returns = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 shows no calls of bound native methods"
)


class Steps:
    """Counts steps, and raises an exception at one of them.

    Attributes:
        made: steps until now.
        place: where the exception was raised, ``None`` if it was not.
    """

    def __init__(self, *under: str, events: Sequence[str] = CALLS, called: str = "") -> None:
        """Says which steps count.

        Args:
            under: folders or files, relative to the package; by default the whole package.
            events: see ``CALLS``.
            called: the end of the name of what is called; by default anything.
        """
        self._called = called
        self._roots = tuple(str(PACKAGE / each) for each in under) or (str(PACKAGE),)
        self._events = frozenset(events)
        self._pid = os.getpid()
        self._position = -1
        self._error: BaseException | None = None
        self.made = 0
        self.place: str | None = None

    def count(self, action: Callable[[], Any]) -> int:
        """Runs an action, and returns how many steps it made."""
        self._run(action)
        return self.made

    def raise_at(self, position: int, error: BaseException, action: Callable[[], T]) -> T:
        """Runs an action, in which ``error`` is raised at the step of number ``position``, from 0.

        Returns:
            what the action does, if it makes fewer steps or catches the error.
        """
        self.arm(position, error)
        # The error must not refer to itself by this frame: who drops it drops what it refers to.
        del error
        return self._run(action)

    def arm(self, position: int, error: BaseException) -> None:
        """Has ``error`` raised at a step from now on, where ``profile`` is the profile function.

        So for threads that others start: ``threading.setprofile(steps.profile)`` before that.
        """
        self.made, self.place = 0, None
        self._position, self._error = position, error

    def _run(self, action: Callable[[], T]) -> T:
        tracer, profiler = sys.gettrace(), sys.getprofile()
        lines = "line" in self._events
        # Python drops a function that raises while it still calls it: it must be held elsewhere.
        trace, profile = self._trace, self.profile
        if lines:
            sys.settrace(trace)
        if self._events - {"line"}:
            sys.setprofile(profile)
        try:
            return action()
        finally:
            sys.setprofile(profiler)
            if lines:
                sys.settrace(tracer)

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        """A profile function, see ``sys.setprofile``."""
        if event not in self._events:
            return
        # A Python function's frame is its own: the call is made in the one before.
        maker = frame if event.startswith("c_") else frame.f_back
        if maker is None or not self._is_under(maker):
            return
        if not event.startswith("c_"):
            called = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        else:
            called = getattr(arg, "__qualname__", repr(arg))
            # Python raises nothing between the last statement of a block and a lock's release.
            if event == "c_call" and called.endswith("__exit__"):
                return
        if called.endswith(self._called):
            self._step(maker, f"{event} {called}")

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not self._is_under(frame):
            return None
        if event == "line":
            self._step(frame, "line")
        return self._trace

    def _is_under(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._roots) and os.getpid() == self._pid

    def _step(self, frame: FrameType, what: str) -> None:
        position, self.made = self.made, self.made + 1
        if position == self._position and self._error is not None:
            if _is_in_finalizer(frame):  # Python drops the exception: training never gets it
                self._position += 1
                return
            file = Path(frame.f_code.co_filename).relative_to(PACKAGE)
            self.place = f"{file}:{frame.f_lineno} in {frame.f_code.co_name}: {what}"
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error


def _is_in_finalizer(frame: FrameType | None) -> bool:
    """Whether Python calls it for an object that goes: a ``__del__``, or a weak reference."""
    callback = Finalizer.__call__.__code__
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code is callback:
            return True
        frame = frame.f_back
    return False


def sampled(count: int, most: int, seed: int) -> list[int]:
    """Returns positions of ``count`` steps: all, or ``most`` of them that are drawn by ``seed``."""
    if count <= most:
        return list(range(count))
    return sorted(random.Random(seed).sample(range(count), most))
