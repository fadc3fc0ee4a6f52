"""Signals that are meant for training, in a process that was started by it.

A forked process inherits the training script's handlers: one that writes a checkpoint at SIGTERM or
SIGUSR1 would run once more in every worker when a batch system signals all processes of a job. It
inherits blocked signals, too, even if it is a new interpreter.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

_NAMES = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGCONT")
_OF_TRAINING = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
"""Signals by which users and batch systems speak to training. Not those that a process sends to
itself, as SIGALRM is: user code in a worker may rely on its handler."""

_OF_USERS = _OF_TRAINING[1:3]


def leave(interrupts: bool = True) -> None:
    """Leaves these signals to training; called first in a process that it has started.

    Python handlers of such signals are removed, and SIGUSR1 and SIGUSR2 are ignored, as SIGINT is
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
    """Holds them back from this thread, and from a process forked meanwhile until it calls leave.

    Otherwise the process might run a handler of training before that.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TRAINING)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:  # once more: an exception may have come in place of the call
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
