"""Files as a worker sees them in storage, or gets them from another machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

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


def stamp_of(path: str | bytes) -> Stamp | None:
    """Returns the stamp of a file, ``None`` if none can be read there or it is too large."""
    try:
        stamp = _stamp(os.stat(path))
    except OSError:
        return None
    return stamp if 0 < stamp.nbytes <= MOST_BYTES else None


def read(path: str | bytes) -> File | None:
    """Returns a file of storage, ``None`` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
            stamp = _stamp(os.fstat(file.fileno()))
    except OSError:
        return None
    return File(stamp, data, False) if len(data) == stamp.nbytes else None


def _stamp(info: os.stat_result) -> Stamp:
    return Stamp(info.st_size, info.st_mtime_ns)
