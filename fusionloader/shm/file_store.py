"""What workers make of files, in shared memory once for all of them: filled once, never evicted."""

from __future__ import annotations

import os

import numpy as np

from fusionloader import _native
from fusionloader.shm import objects

_HEADER = 8  # uint64 words, see csrc/worker/file_store.hpp
_RECORD = 48  # bytes
_ALIGNMENT = 64


class FileStore:
    """The store of ``csrc/worker/file_store.hpp``: records of all files, and room for their data.

    Memory is taken from the system as the store is filled, by whoever fills it.

    Attributes:
        fd: file descriptor of the object, for workers to map.
        nbytes: its size, table included: never more than was asked for.
    """

    def __init__(self, files: int, nbytes: int, spared: int = 0) -> None:
        """Makes an empty store for ``files`` files, which leaves ``spared`` bytes to others.

        Raises:
            SharedMemoryExhausted: ``/dev/shm`` has no room for the table of the files.
            ValueError: ``nbytes`` are too few for that table.
        """
        records = 8 * _HEADER
        data = -(-(records + _RECORD * files) // _ALIGNMENT) * _ALIGNMENT
        if data > nbytes:
            raise ValueError(f"{files} files need a table of {data} bytes, there are {nbytes}")
        self.nbytes = nbytes
        self.fd = objects.create(nbytes)
        try:
            objects.reserve(self.fd, 0, data)
        except objects.SharedMemoryExhausted:
            self.close()
            raise
        self._header = np.frombuffer(memoryview(_native.Mapping(self.fd, 0, data)), np.uint64, 8)
        capacity = (nbytes - data) // _ALIGNMENT * _ALIGNMENT
        self._header[:4] = (files, records, data, capacity)
        self._header[7] = spared

    @property
    def used(self) -> int:
        """Bytes taken, table included."""
        return int(self._header[2] + self._header[4])

    @property
    def kept(self) -> int:
        """Files of which something is kept."""
        return int(self._header[5])

    @property
    def closed(self) -> bool:
        """Whether ``/dev/shm`` was full before the store was."""
        return bool(self._header[6])

    def close(self) -> None:
        """Closes the descriptor; the memory goes with the last process that maps it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()
