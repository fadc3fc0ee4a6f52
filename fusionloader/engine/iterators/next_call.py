"""A call of ``next()``: whose turn it is, how torch's is made, and what its error says."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from fusionloader.options.aliases import Batch
from fusionloader.system.processes import refuse_in_child


class OneThread:
    """Lets one thread at a time call ``next()``: several may take batches, as from a queue."""

    def __init__(self, has_workers: bool) -> None:
        """``has_workers``: whether a forked child is refused, since workers serve its parent."""
        self._has_workers = has_workers
        self._owner, self._lock = os.getpid(), threading.RLock()

    @property
    def lock(self) -> threading.RLock:
        """The lock, for use in a ``with`` statement, as that of ``ForkLock``.

        Raises:
            RuntimeError: this thread has it. A call of ``next()`` in the midst of another one would
                return the batch of that one.
        """
        if os.getpid() != self._owner:
            if self._has_workers:
                refuse_in_child(self._owner)
            # A thread of the parent may own the copied lock forever.
            self._owner, self._lock = os.getpid(), threading.RLock()
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError(
                "next() was called within next() of the same iterator, by a signal handler or a "
                "finalizer. Let it set a variable, and call next() later"
            )
        return self._lock


def note_what_follows(error: BaseException, *, ends_batch: bool) -> None:
    """Adds a note to an error of ``next()`` that says what the next call does.

    ``ends_batch``: whether the mini-batch ends with the error. Otherwise a lack of memory or files
    loses none. Other errors say it themselves.
    """
    if not hasattr(error, "add_note"):  # Python 3.10
        return
    if ends_batch:
        note = "The next call of next() goes on with the mini-batch after this one."
        if note not in getattr(error, "__notes__", ()):  # it may be raised for a second time
            error.add_note(note)
    elif isinstance(error, (MemoryError, OSError)):
        error.add_note("No mini-batch is lost: the next call of next() tries again.")


def next_batch(iterator: Any, torchs: Callable[[], Batch]) -> Batch:
    """Returns what ``torchs``, the ``__next__`` of torch's class, returns.

    If no profiler runs, it skips torch's profiler entry, which costs as much as a small batch.
    """
    if torch.autograd.profiler._is_profiler_enabled:
        return torchs()
    batch: Batch = iterator._next_data()
    iterator._num_yielded += 1
    return batch
