"""A store of what workers derive from files, in shared memory: filled once, never evicted."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from fusionloader import _native
from fusionloader.shm import objects

_HEADER = 8  # uint64 words, see csrc/worker/file_store.hpp
_ALIGNMENT = 64
_FILLED = 1

RECORD = np.dtype(
    [
        ("state", np.uint64),
        ("offset", np.uint64),
        ("bytes", np.uint64),
        ("file_bytes", np.uint64),
        ("mtime_ns", np.int64),
        ("width", np.uint32),
        ("height", np.uint32),
    ]
)
"""A file's record: state, position and size of its data, and the file's stamp."""


class FileStore:
    """The store of ``csrc/worker/file_store.hpp``: records of all files, and room for their data.

    Memory is allocated as the store is filled, by the process that fills it.

    Attributes:
        fd: file descriptor of the object, for workers to map.
        nbytes: its size, table included: never more than was requested.
        files: number of files.
        capacity: bytes for their data.
    """

    def __init__(self, files: int, nbytes: int, spared: int = 0) -> None:
        """Makes an empty store for ``files`` files; ``spared`` bytes of ``/dev/shm`` stay free.

        Raises:
            SharedMemoryExhausted: ``/dev/shm`` has no room for the table of the files.
            ValueError: ``nbytes`` are too few for that table.
        """
        records = 8 * _HEADER
        data = -(-(records + RECORD.itemsize * files) // _ALIGNMENT) * _ALIGNMENT
        if data > nbytes:
            raise ValueError(f"{files} files need a table of {data} bytes, there are {nbytes}")
        self.nbytes = nbytes
        self.fd = objects.create(nbytes)
        try:
            objects.reserve(self.fd, 0, data)
        except objects.SharedMemoryExhausted:
            self.close()
            raise
        table = memoryview(_native.Mapping(self.fd, 0, data))
        self._header = np.frombuffer(table, np.uint64, _HEADER)
        self._records = np.frombuffer(table, RECORD, files, records)
        self.files = files
        self.capacity = (nbytes - data) // _ALIGNMENT * _ALIGNMENT
        self._header[:4] = (files, records, data, self.capacity)
        self._header[7] = spared

    @property
    def used(self) -> int:
        """Bytes taken, table included."""
        return int(self._header[2] + self._header[4])

    @property
    def kept(self) -> int:
        """Number of files with data in the store."""
        return int(self._header[5])

    @property
    def closed(self) -> bool:
        """Whether ``/dev/shm`` was full before the store was."""
        return bool(self._header[6])

    def filled_records(self) -> npt.NDArray[np.void]:
        """Returns a copy of the table, with zeros for files that are not filled yet."""
        states = self._records["state"].copy()  # first: records that are filled never change
        records = self._records.copy()
        records[states != _FILLED] = np.zeros((), RECORD)
        return records

    def read(self, offset: int, nbytes: int) -> bytes:
        """Returns some of the data."""
        return os.pread(self.fd, nbytes, int(self._header[2]) + offset)

    def write(self, offset: int, data: bytes) -> None:
        """Writes some of the data, before workers do.

        Raises:
            OSError: ``/dev/shm`` is full.
        """
        done = 0
        while done < len(data):
            done += os.pwrite(self.fd, data[done:], int(self._header[2]) + offset + done)

    def take_over(self, records: npt.NDArray[np.void], used: int) -> None:
        """Makes ``records`` the table, after ``write`` has written their ``used`` bytes of data."""
        self._records[:] = records
        self._header[4] = -(-used // _ALIGNMENT) * _ALIGNMENT
        self._header[5] = np.count_nonzero(records["state"] == _FILLED)

    def close(self) -> None:
        """Closes the descriptor; the memory is freed with the last process that maps it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()
