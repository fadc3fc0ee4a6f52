"""Functions that are called when an object is collected, or when Python exits.

``weakref.finalize`` has one dictionary for all packages of a process, and goes through it at exit.
Daemonic threads that make and drop loaders meanwhile would change it under that loop, which then
ends with an error and leaves out the rest.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing.util  # noqa: F401 - first: at exit it kills processes that are left
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

_ROUNDS = 10  # at exit: threads may add finalizers for as long as there are threads
_Pending = dict[int, tuple[weakref.ref[Any], Callable[..., object], tuple[Any, ...]]]
_numbers = itertools.count()
_exiting: int | None = None  # the thread in which Python exits


class Finalizer:
    """Calls a function once: when it is called itself, or else when its owner is collected.

    It refers to the function and its arguments until then, which must not refer to the owner.
    """

    __slots__ = ("_number",)
    _pending: ClassVar[_Pending] = {}

    def __init__(self, owner: object, function: Callable[..., object], *arguments: Any) -> None:
        self._number = next(_numbers)
        self._pending[self._number] = (weakref.ref(owner, self), function, arguments)

    # A default argument, because Python may clear this module before it collects the owner.
    def __call__(
        self, _: Any = None, is_finalizing: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        if not is_finalizing():
            self._call(self._number)

    def detach(self) -> None:
        """Drops the function without a call."""
        self._pending.pop(self._number, None)

    @classmethod
    def _call(cls, number: int) -> None:
        found = cls._pending.pop(number, None)  # atomic, so that one of several threads calls it
        if found is not None:
            _, function, arguments = found
            function(*arguments)


class ExitFinalizer(Finalizer):
    """A finalizer that also calls at exit, and never in a forked child of its process."""

    __slots__ = ()
    _pending: ClassVar[_Pending] = {}

    def __init__(self, owner: object, function: Callable[..., object], *arguments: Any) -> None:
        super().__init__(owner, _call_in, os.getpid(), function, *arguments)

    @classmethod
    def call_all(cls) -> None:
        """Calls the functions, the newest first; an exception is reported and does not stop it."""
        global _exiting
        _exiting = threading.get_ident()
        for _ in range(_ROUNDS):
            for number in reversed(list(cls._pending)):  # a copy of integers, made at once
                try:
                    cls._call(number)
                except BaseException:
                    sys.excepthook(*sys.exc_info())


def _call_in(pid: int, function: Callable[..., object], *arguments: Any) -> None:
    if os.getpid() == pid:
        function(*arguments)


def refuse_at_exit() -> None:
    """Raises RuntimeError in a thread that goes on while Python exits, which ends no more work."""
    if _exiting not in (None, threading.get_ident()):
        raise RuntimeError("Python exits: other threads cannot begin to iterate a loader any more")


atexit.register(ExitFinalizer.call_all)
