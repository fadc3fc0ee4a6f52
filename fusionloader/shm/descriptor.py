"""File descriptors as arguments of processes."""

from __future__ import annotations

from multiprocessing import reduction
from typing import Any


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
