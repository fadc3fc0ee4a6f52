"""Keeps signals that are meant for training out of the processes that it starts.

A forked process inherits the training script's handlers: one that writes a checkpoint at SIGTERM or
SIGUSR1 would also run in every worker when a batch system signals all processes of a job. Blocked
signals are inherited too, even by a new interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import signal
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

_NAMES = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGCONT")
_OF_TRAINING = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
"""Signals that users and batch systems send to training. Signals that a process sends to itself,
such as SIGALRM, are left out, because user code in a worker may rely on its handler."""

_OF_USERS = _OF_TRAINING[1:3]
_OF_TIMERS = {
    getattr(signal, name) for name in ("SIGALRM", "SIGVTALRM", "SIGPROF") if hasattr(signal, name)
}
_WITH_HANDLERS = {*_OF_TRAINING, signal.SIGINT, *_OF_TIMERS} | (
    {signal.SIGCHLD} if hasattr(signal, "SIGCHLD") else set()
)
"""Those that usually have handlers: looking up all takes long. Others are known by arguments."""


def raised_by_handler(error: BaseException, numbers: Iterable[int] | None = None) -> bool:
    """Whether a handler of one of the signals raised an error, or the cause of one.

    Such an error is not that of the sample at which the signal came. By default the signals are all
    but those of timers, such as SIGALRM, because a timer may limit the time for a sample.
    """
    numbers = set(signal.valid_signals() - _OF_TIMERS if numbers is None else numbers)
    codes = set(map(_handler_code, numbers & _WITH_HANDLERS)) - {None}
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is each for each in seen):
        seen.append(cause)
        traceback = cause.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            if frame.f_code in codes or _has_arguments_of_a_handler(frame, numbers, cause):
                return True
            traceback = traceback.tb_next
        cause = cause.__cause__
    return False


def _has_arguments_of_a_handler(frame: FrameType, numbers: set[int], error: BaseException) -> bool:
    """Whether a function was called with a signal's number and then a frame.

    A handler may have put another one in its place, such as ``SIG_DFL`` for a second Ctrl-C.
    """
    code = frame.f_code
    names = list(code.co_varnames[: code.co_argcount])
    if code.co_flags & inspect.CO_VARARGS:
        names.append(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    if not names or not code.co_flags & inspect.CO_OPTIMIZED:
        return False
    variables = frame.f_locals
    given: list[Any] = []
    for value in map(variables.get, names):
        given.extend(value if isinstance(value, tuple) else [value])
    if isinstance(variables, dict):
        # Before Python 3.13 the frame keeps this copy. With the error, whose traceback has the
        # frame, it would be a cycle, which keeps the batch until a garbage collection.
        for name in [name for name, value in variables.items() if value is error]:
            del variables[name]
    return any(
        isinstance(number, int)
        and not isinstance(number, bool)
        and number in numbers
        and isinstance(at, FrameType)
        for number, at in itertools.pairwise(given)
    )


def _handler_code(number: int) -> CodeType | None:
    handler: Any = signal.getsignal(number)
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = handler.__call__
    return getattr(handler, "__code__", None)


def leave(interrupts: bool = True) -> None:
    """Removes training's signal handlers. Call it first in a process that training has started.

    Signals with a Python handler are ignored from now on, as are SIGUSR1 and SIGUSR2, and SIGINT
    with ``interrupts``. SIGTERM ends the process. ``faulthandler``'s handlers stay, and user code
    may set handlers afterwards.
    """
    if sys.platform == "win32":
        return
    signal.set_wakeup_fd(-1)  # it would write to the event loop of training
    for number in _OF_TRAINING:
        handler = signal.getsignal(number)
        if callable(handler) or (number in _OF_USERS and handler == signal.SIG_DFL):
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Blocks these signals in this thread, and in a process forked within until it calls ``leave``.

    Otherwise that process might run a handler of training before.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TRAINING)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:  # again: an exception may have come before the call above took effect
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
