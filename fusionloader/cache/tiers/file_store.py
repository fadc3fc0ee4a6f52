"""A store of encoded or decoded files: workers fill it once, and nothing is evicted."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fusionloader import _native
from fusionloader.cache.tiers.ledger import Ledger
from fusionloader.system.shm import objects
from fusionloader.system.shm.descriptor import OwnedDescriptor

_HEADER = np.dtype(
    [
        *(("magic", "S8"), ("medium", np.uint64)),
        *(("items", np.uint64), ("records", np.uint64), ("data", np.uint64)),
        *(("capacity", np.uint64), ("used", np.uint64), ("kept", np.uint64)),
        *(("closed", np.uint64), ("unused", np.uint64), ("spared", np.uint64)),
        *(("damaged", np.uint64), ("fingerprint", "V32")),
    ]
)  # of csrc/worker/file_store.hpp
MAGIC = b"FLstore1"  # another layout has another number
MEMORY, DISK = 0, 1
_ALIGNMENT = 64
FILLED = 1  # state of a record

RECORD = np.dtype(
    [
        ("state", np.uint64),
        ("offset", np.uint64),
        ("bytes", np.uint64),
        ("room", np.uint64),
        ("file_bytes", np.uint64),
        ("mtime_ns", np.int64),
        ("width", np.uint32),
        ("height", np.uint32),
        ("checksum", np.uint64),
    ]
)
"""A file's record: state, position and size of its data, and the file's stamp."""


_LASTING = ("magic", "medium", "items", "records", "data", "fingerprint")


def table_bytes(files: int) -> int:
    """Returns the bytes of a store's header and records."""
    size = _HEADER.itemsize + RECORD.itemsize * files
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class FileStore(OwnedDescriptor):
    """The store of ``csrc/worker/file_store.hpp``: records of all files, and their data.

    The process that writes data allocates its memory.

    Attributes:
        fd: file descriptor of the object, for workers to map.
        nbytes: size of the object with the table, at most the requested size.
        mapped: bytes to map from the beginning: the table if the store is on a disk, else all.
        files: number of records.
        capacity: bytes for data.
        lock_fd: descriptor of the lock of a store on a disk, -1 without one.
    """

    lock_fd = -1

    def __init__(
        self, files: int, nbytes: int, spared: int = 0, ledger: Ledger | None = None
    ) -> None:
        """Makes an empty store in shared memory.

        Args:
            files: number of records.
            nbytes: most bytes of the store.
            spared: bytes of memory that stay free for other processes.
            ledger: ledger of the cache, which limits the store too.

        Raises:
            SharedMemoryExhausted: there is too little memory for the table.
            ValueError: ``nbytes`` or the ledger has too little for the table.
        """
        table = table_bytes(files)
        if table > nbytes or (ledger is not None and not ledger.charge(table)):
            left = nbytes if ledger is None else ledger.memory.limit - ledger.memory.used
            raise ValueError(f"{files} files need a table of {table} bytes, there are {left}")
        try:
            fd = _created(nbytes, table)
        except BaseException:
            if ledger is not None:
                ledger.refund(table)
            raise
        write_header(fd, files, MEMORY, nbytes - table, spared)
        self._map(fd, nbytes)

    def _map(self, fd: int, nbytes: int) -> None:
        self.nbytes = nbytes
        header = memoryview(_native.SharedMapping(fd, 0, _HEADER.itemsize, is_file=True))
        self._header = np.frombuffer(header, _HEADER, 1)[0:1]
        data, self.files = int(self._header["data"][0]), int(self._header["items"][0])
        table = memoryview(_native.SharedMapping(fd, 0, data, is_file=True))
        self._records = np.frombuffer(table, RECORD, self.files, int(self._header["records"][0]))
        self.mapped = data if int(self._header["medium"][0]) == DISK else nbytes
        self.capacity = int(self._header["capacity"][0])
        _native.FileStoreView(fd, self.mapped)  # raises if the header is malformed
        self.fd = fd  # last: if an exception comes before, the caller closes the descriptor

    @classmethod
    def of_descriptor(cls, fd: int, nbytes: int) -> FileStore:
        """Opens the store behind a descriptor, and takes ownership of it."""
        store = cls.__new__(cls)
        store._map(fd, nbytes)
        return store

    def _word(self, name: str) -> int:
        return int(self._header[name][0])

    @property
    def used(self) -> int:
        """Bytes in use, with the table."""
        return self._word("data") + self._word("used")

    @property
    def kept(self) -> int:
        return self._word("kept")

    @property
    def closed(self) -> bool:
        """Whether the system ran out of space before the store was full."""
        return bool(self._word("closed"))

    @property
    def damaged(self) -> int:
        """Number of files whose data on the disk did not match its checksum."""
        return self._word("damaged")

    def filled_records(self) -> npt.NDArray[np.void]:
        """Returns a copy of the table, with zeros for files that are not filled yet."""
        states = self._records["state"].copy()  # first, because filled records never change
        records = self._records.copy()
        records[states != FILLED] = np.zeros((), RECORD)
        return records

    def forget_unfinished(self) -> None:
        """Frees records that are not filled. No other process may use the store."""
        unfinished = self._records["state"] != FILLED
        self._records["state"][unfinished] = 0
        self._header["kept"] = np.count_nonzero(~unfinished)

    def read(self, offset: int, nbytes: int) -> bytes:
        return os.pread(self.fd, nbytes, self._word("data") + offset)

    def write(self, offset: int, data: bytes) -> None:
        """Writes data at an offset, before workers write any.

        Raises:
            OSError: there is too little memory.
        """
        done = 0
        while done < len(data):
            done += os.pwrite(self.fd, data[done:], self._word("data") + offset + done)

    def take_over(self, records: npt.NDArray[np.void], used: int) -> None:
        """Sets the table, after ``write`` has written the ``used`` bytes of data of ``records``."""
        self._records[:] = records
        self._header["used"] = -(-used // _ALIGNMENT) * _ALIGNMENT
        self._header["kept"] = np.count_nonzero(records["state"] == FILLED)

    def close(self, close_fd: Callable[[int], None] = os.close) -> None:
        """Closes the descriptors. The memory is freed with the last process that maps it."""
        super().close(close_fd)
        if self.lock_fd >= 0:
            close_fd(self.lock_fd)
            self.lock_fd = -1


def _created(nbytes: int, table: int) -> int:
    """Returns the descriptor of new memory, in which only the table is allocated."""
    fd = objects.create(nbytes, "store", allocated=0)
    try:
        objects.reserve(fd, 0, table)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_header(
    fd: int, files: int, medium: int, room: int, spared: int, fingerprint: bytes = b""
) -> None:
    """Writes the header of an empty store with ``room`` bytes for data."""
    os.pwrite(fd, _header(files, medium, room, spared, fingerprint).tobytes(), 0)


def _header(
    files: int, medium: int, room: int, spared: int, fingerprint: bytes
) -> npt.NDArray[np.void]:
    header = np.zeros(1, _HEADER)
    header["magic"], header["medium"], header["items"] = MAGIC, medium, files
    header["records"], header["data"] = _HEADER.itemsize, table_bytes(files)
    header["capacity"] = room // _ALIGNMENT * _ALIGNMENT
    header["spared"] = spared
    header["fingerprint"] = np.void(fingerprint.ljust(32, b"\0"))
    return header


def renew_header(fd: int, files: int, room: int, spared: int, fingerprint: bytes) -> int | None:
    """Sets the capacity of an existing store on a disk to ``room`` bytes.

    Returns:
        The bytes in use, with the table; ``None`` if the file is no store of these files and this
        version.
    """
    raw, table = os.pread(fd, _HEADER.itemsize, 0), table_bytes(files)
    if len(raw) < _HEADER.itemsize or os.fstat(fd).st_size < table:
        return None
    found, made = np.frombuffer(raw, _HEADER), _header(files, DISK, room, spared, fingerprint)
    used = int(found["used"][0])
    if any(found[name] != made[name] for name in _LASTING) or used > found["capacity"][0]:
        return None
    for name in ("capacity", "closed", "spared"):  # jobs that map the file may write the others
        os.pwrite(fd, made[name].tobytes(), _HEADER.fields[name][1])  # type: ignore[index]
    return table + used
