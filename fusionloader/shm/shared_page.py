"""What owns a file descriptor: by itself, or a few pages of shared memory behind it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

from fusionloader import _native
from fusionloader.shm import objects

PAGE = 4096


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
        if self.fd >= 0:
            close_fd(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()


class SharedPage(OwnedDescriptor):
    """A page, or ``nbytes``, mapped into this process.

    Attributes:
        fd: file descriptor, for other processes to map.
    """

    nbytes: ClassVar[int] = PAGE

    def __init__(self, fd: int) -> None:
        """Maps the page behind a descriptor, which it then owns."""
        self.fd = fd
        self._page = memoryview(_native.SharedMapping(fd, 0, self.nbytes))

    @classmethod
    def _made(cls, name: str, begins: bytes = b"") -> int:
        """Returns the descriptor of a page that ``begins`` so, with zeros behind.

        ``name`` is for who looks at processes.
        """
        fd = objects.create(cls.nbytes, name)
        os.pwrite(fd, begins, 0)
        return fd
