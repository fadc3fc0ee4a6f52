"""Files, or ranges of them, as a worker sees them in storage or gets them from elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fusionloader.cache.range_reading import FileRange, open_file, read_range
from fusionloader.cache.servers.requests import MOST_BYTES, Stamp


@dataclass(frozen=True, slots=True)
class File:
    """The bytes of a file, from another server's cache (``is_hit``) or from storage."""

    stamp: Stamp
    data: bytes | memoryview
    is_hit: bool

    def copied(self) -> File:
        """Returns the same, in memory of its own."""
        return File(self.stamp, bytes(self.data), self.is_hit)


def stamp_of(where: FileRange) -> Stamp | None:
    """Returns the stamp of a file, ``None`` if none can be read there or it is too large.

    That of a range has its own length; ``None``, too, if its file has changed.
    """
    try:
        stamp = _stamp(os.stat(where.file))
    except OSError:
        return None
    if where.nbytes:
        if stamp != (where.file_bytes, where.mtime_ns):
            return None
        stamp = Stamp(where.nbytes, where.mtime_ns)
    return stamp if 0 < stamp.nbytes <= MOST_BYTES else None


def read(where: FileRange) -> File | None:
    """Returns a file or a range of storage, ``None`` if it cannot be read."""
    try:
        if where.nbytes:
            return File(Stamp(where.nbytes, where.mtime_ns), read_range(where), False)
        with open_file(where.file) as file:
            data = file.read()
            stamp = _stamp(os.fstat(file.fileno()))
    except OSError:
        return None
    return File(stamp, data, False) if len(data) == stamp.nbytes else None


def _stamp(info: os.stat_result) -> Stamp:
    return Stamp(info.st_size, info.st_mtime_ns)
