"""A few pages of shared memory, mapped, and the descriptor that other processes map them by."""

from __future__ import annotations

import os
from typing import ClassVar

from fusionloader import _native
from fusionloader.system.shm import objects
from fusionloader.system.shm.descriptor import OwnedDescriptor

PAGE = 4096


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
