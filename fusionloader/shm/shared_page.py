"""A few pages of shared memory without a name, for processes that get their descriptor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

from fusionloader import _native

PAGE = 4096


class SharedPage:
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
    def _made(cls, name: str) -> int:
        """Returns the descriptor of a page of zeros; ``name`` is for who looks at processes."""
        fd = os.memfd_create(f"fusionloader-{name}", os.MFD_CLOEXEC)
        os.ftruncate(fd, cls.nbytes)
        return fd

    def close(self, close_fd: Callable[[int], None] = os.close) -> None:
        """Closes the descriptor; what is mapped stays.

        ``close_fd`` is a default argument because Python may clear its modules before ``__del__``.
        """
        if self.fd >= 0:
            close_fd(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()
