"""Runs a function in a thread of its own: without signal handlers, in torch's default modes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def run_in_own_thread(function: Callable[[], T], name: str) -> T | None:
    """Returns the function's result; ``None`` if it raises, which ``threading.excepthook`` shows.

    It is called in this thread if no other can be started.
    """
    made: list[T] = []
    thread = threading.Thread(target=lambda: made.append(function()), name=name)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return function()
    thread.join()
    return made[0] if made else None
