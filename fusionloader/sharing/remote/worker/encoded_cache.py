"""Encoded bytes of files that a remote worker has read, kept up to a budget and never evicted.

Each file is wanted once an epoch, in random order: whatever is kept is as useful as anything else,
and evicting would only trade one file for another.
"""

from __future__ import annotations

import threading
from typing import NamedTuple


class FileStamp(NamedTuple):
    """What tells a file from one that has replaced it: bytes, and nanoseconds of its change."""

    nbytes: int
    modified_ns: int


class EncodedCache:
    """Files by their paths, for all threads of a worker."""

    def __init__(self, budget: int) -> None:
        """Keeps at most ``budget`` bytes of files."""
        self._budget = budget
        self._used = 0
        self._files: dict[bytes, tuple[FileStamp, bytes]] = {}
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that are kept."""
        return self._used

    def get(self, path: bytes, stamp: FileStamp) -> bytes | None:
        """Returns the bytes of a file, if they are kept and the file has not changed."""
        kept = self._files.get(path)
        return kept[1] if kept is not None and kept[0] == stamp else None

    def put(self, path: bytes, stamp: FileStamp, data: memoryview) -> None:
        """Keeps a copy of a file's bytes if there is room for them."""
        with self._lock:
            kept = self._files.get(path)
            before = 0 if kept is None else kept[0].nbytes
            if self._used - before + stamp.nbytes > self._budget:
                return
            self._files[path] = (stamp, bytes(data))
            self._used += stamp.nbytes - before
