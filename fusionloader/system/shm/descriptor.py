"""File descriptors that an object owns, or that are arguments of processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any


class OwnedDescriptor:
    """Closes it with the last reference to the object; memory that is mapped stays.

    Attributes:
        fd: the descriptor, -1 once it is closed.
    """

    fd: int

    def close(self, close_fd: Callable[[int], None] = os.close) -> None:
        """Closes the descriptor.

        ``close_fd`` is a default argument because Python may clear its modules before ``__del__``.
        """
        fd, self.fd = self.fd, -1  # first: with an exception behind it, none is closed twice
        if fd >= 0:
            close_fd(fd)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()


class Descriptor:
    """A file descriptor as an argument of a process: pickling duplicates it into the process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        if self.fd < 0:  # sent in another way
            return Descriptor, (self.fd,)
        return _received, (reduction.DupFd(self.fd),)


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())
