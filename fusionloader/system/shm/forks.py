"""Delivered memory that a child of this process may look at, which was forked while it was held.

The child sees the same pages as this process. So what is held at a fork is not written again
before the child has ended, and all that it has forked in turn: they inherit the only write end of
a pipe, whose read end tells. The loader's own workers are no such children: they look at no batch.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Protocol

from fusionloader.system.shm.descriptor import OwnedDescriptor


class Held(Protocol):
    """Memory that was delivered."""

    forks: list[Fork]


class BatchHolder(Protocol):
    """What delivers memory, and uses it again when the caller has dropped it."""

    def held(self) -> Iterable[Held]:
        """Returns what the caller has not dropped."""


class Fork(OwnedDescriptor):
    """The children of one fork; ``fd`` is the read end of their pipe."""

    def __init__(self) -> None:
        try:
            self.fd, self._write = os.pipe()
        except OSError:  # too many open files: nothing tells when the children have ended
            self.fd = self._write = -1

    def close_write(self) -> None:
        """In the parent: the children alone keep the pipe open."""
        if self._write >= 0:
            os.close(self._write)

    def has_ended(self) -> bool:
        """Whether no child is left, as far as can be told."""
        # The garbage collector may have closed it, and ask what refers to it only then.
        if self.fd < 0:
            return False
        poll = select.poll()
        poll.register(self.fd, 0)
        return bool(poll.poll(0))  # POLLHUP


_holders: weakref.WeakSet[BatchHolder] = weakref.WeakSet()
_here = threading.local()  # whether a worker is being forked; the fork under way


def watch(holder: BatchHolder) -> None:
    """Has forks noted in what ``holder`` holds."""
    _holders.add(holder)


def is_seen(held: Held) -> bool:
    """Whether a child may look at memory that was dropped here."""
    held.forks = [fork for fork in held.forks if not fork.has_ended()]
    return bool(held.forks)


@contextlib.contextmanager
def of_worker() -> Iterator[None]:
    """The thread forks a worker within the block."""
    _here.is_worker = True
    try:
        yield
    finally:
        _here.is_worker = False


def _before() -> None:
    _here.fork = None
    if getattr(_here, "is_worker", False):
        return
    held = [each for holder in list(_holders) for each in holder.held()]
    if held:
        _here.fork = fork = Fork()
        for each in held:
            each.forks.append(fork)


def _after_in_parent() -> None:
    if _here.fork is not None:
        _here.fork.close_write()
        _here.fork = None


def _after_in_child() -> None:
    if _here.fork is not None:
        _here.fork.close()
    _here.is_worker = False
    _holders.clear()  # what they deliver is the parent's to use again


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
