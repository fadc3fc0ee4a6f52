"""Protects delivered memory that a forked child may look at.

A forked child sees the same pages as this process. So memory that is held at a fork is not reused
before the child and its own children have ended. They inherit the only write end of a pipe, whose
read end shows when all of them have ended. Workers that run user code count as well: a batch may be
in their dataset. Others look at no batch.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Protocol

from fusionloader.system.shm.descriptor import OwnedDescriptor, wait_for


class Held(Protocol):
    """Memory that was delivered, with the forks that happened while it was held."""

    forks: list[Fork]


class BatchHolder(Protocol):
    """A pool that delivers memory, and reuses it after the caller has dropped it."""

    def held(self) -> Iterable[Held]:
        """Returns the memory that the caller has not dropped."""


class Fork(OwnedDescriptor):
    """One fork and its children. ``fd`` is the read end of their pipe."""

    def __init__(self) -> None:
        try:
            self.fd, self._write = os.pipe()
        except OSError:  # too many open files: has_ended() is always false then
            self.fd = self._write = -1

    def close_write(self) -> None:
        """Called in the parent, so that only the children keep the pipe open."""
        if self._write >= 0:
            os.close(self._write)

    def has_ended(self) -> bool:
        """Whether all children have ended; ``False`` if that is unknown."""
        # The garbage collector may finalize this before the pool that asks.
        return self.fd >= 0 and wait_for(self.fd, 0)  # POLLHUP


_holders: weakref.WeakSet[BatchHolder] = weakref.WeakSet()
_here = threading.local()  # looks: whether this thread's forks do; fork: the current one


def watch(holder: BatchHolder) -> None:
    """Records later forks in the memory that ``holder`` holds."""
    _holders.add(holder)


def is_seen(held: Held) -> bool:
    """Whether a forked child may still look at memory that was dropped here."""
    while held.forks and held.forks[-1].has_ended():  # asks one child, of the many workers it has
        del held.forks[-1]
    return bool(held.forks)


@contextlib.contextmanager
def of_worker_without_user_code() -> Iterator[None]:
    """Marks forks of this thread within the block: they look at no batch."""
    _here.looks = False
    try:
        yield
    finally:
        _here.looks = True


def _before() -> None:
    _here.fork = None
    if not getattr(_here, "looks", True):
        return
    held = [each for holder in list(_holders) for each in holder.held()]
    if held:
        _here.fork = fork = Fork()
        ended = {other: other.has_ended() for each in held for other in each.forks}
        for each in held:  # in place: another thread may fork meanwhile, and add its own
            for other in [other for other in each.forks if ended.get(other)]:
                with contextlib.suppress(ValueError):
                    each.forks.remove(other)
            each.forks.append(fork)


def _after_in_parent() -> None:
    if _here.fork is not None:
        _here.fork.close_write()
        _here.fork = None


def _after_in_child() -> None:
    if _here.fork is not None:
        _here.fork.close()
    _here.looks = True
    _holders.clear()  # only the parent reuses their memory


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
