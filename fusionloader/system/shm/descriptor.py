"""File descriptors that an object owns, or that are passed to processes."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any


def wait_for(fd: int, event: int, seconds: float | None = 0) -> bool:
    """Waits for an event of ``select.poll``, or the other end's; returns whether it has come."""
    poll = select.poll()  # select() is limited to descriptors below 1024
    poll.register(fd, event)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


class OwnedDescriptor:
    """Closes its descriptor with the last reference to the object. Mapped memory stays mapped.

    Attributes:
        fd: the descriptor, -1 once it is closed.
    """

    fd: int

    def close(self, close_fd: Callable[[int], None] = os.close) -> None:
        """Closes the descriptor.

        ``close_fd`` is an argument because Python may have cleared this module by ``__del__``.
        """
        fd, self.fd = self.fd, -1  # first: an exception must not cause a second close
        if fd >= 0:
            close_fd(fd)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()


class Descriptor:
    """A file descriptor as an argument of a process. Pickling duplicates it into the process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        if self.fd < 0:  # there is nothing to duplicate
            return Descriptor, (self.fd,)
        return _received, (reduction.DupFd(self.fd),)


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())
