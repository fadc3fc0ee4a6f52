"""A call of ``next()``: how torch's is made, and what its error says of the call that follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusionloader.options.aliases import Batch


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
