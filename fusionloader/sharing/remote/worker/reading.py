"""Reads regular files of a dataset, or ranges of them, on a remote worker, and caches them."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator

from fusionloader.cache.range_reading import FileStamp
from fusionloader.transforms.executors.native import MOST_ENCODED_BYTES

# O_NONBLOCK: the path may be of a pipe, and opening must not wait for its writer.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_BUFFER_BYTES = 16 << 20  # most bytes of the buffer, which is reused from one file to the next


class Unavailable(Exception):
    """A file is missing or differs; the text has its path."""


class TooLarge(Exception):
    """A file is not read because of its size; the text has its path."""


class EncodedCache:
    """Encoded bytes of files that were read, by their paths, for all threads of a worker.

    Up to a budget, and without eviction: each file is wanted once an epoch, in random order, so
    evicting would only replace one file by an equally useful one.
    """

    def __init__(self, budget: int) -> None:
        """Keeps at most ``budget`` bytes of files."""
        self._budget = budget
        self._used = 0
        self._files: dict[bytes, tuple[FileStamp, bytes]] = {}
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Number of cached bytes."""
        return self._used

    def get(self, path: bytes, stamp: FileStamp) -> bytes | None:
        """Returns the bytes of a file, if they are cached and the file has not changed."""
        cached = self._files.get(path)
        return cached[1] if cached is not None and cached[0] == stamp else None

    def put(self, path: bytes, stamp: FileStamp, data: memoryview) -> None:
        """Caches a copy of a file's bytes if the budget allows it."""
        with self._lock:
            cached = self._files.get(path)
            before = 0 if cached is None else cached[0].nbytes
            if self._used - before + stamp.nbytes > self._budget:
                return
            self._files[path] = (stamp, bytes(data))
            self._used += stamp.nbytes - before


@contextlib.contextmanager
def opened(path: bytes) -> Iterator[tuple[int, FileStamp]]:
    """Opens a regular file; gives its descriptor and its stamp.

    Raises:
        Unavailable: it cannot be opened, or is no regular file.
    """
    try:
        fd = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:  # ValueError: the path has null bytes
        why = error.strerror if isinstance(error, OSError) else error
        raise Unavailable(f"{os.fsdecode(path)!r} cannot be read: {why}") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise Unavailable(f"{os.fsdecode(path)!r} is no regular file")
        yield fd, FileStamp.of(info)
    except OSError as error:
        raise Unavailable(f"{os.fsdecode(path)!r} cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)


def _require_size(path: bytes, found: int, wanted: int) -> None:
    if found != wanted:
        name = os.fsdecode(path)
        raise Unavailable(f"{name!r} has {found} bytes here, and {wanted} where training is")


class FileReader:
    """Reads one file or range after the other into the same memory.

    Attributes:
        bytes_read: number of bytes that were read from storage.
    """

    def __init__(self, cache: EncodedCache | None = None) -> None:
        self.bytes_read = 0
        self._cache = cache
        self._buffer = memoryview(bytearray())

    def read(self, path: bytes, nbytes: int) -> memoryview:
        """Returns a file's bytes, valid until the next call.

        Args:
            path: path of the file.
            nbytes: size that the file should have, 0 for any.

        Raises:
            Unavailable: it cannot be read, or has another size.
            TooLarge: it has more than ``MOST_ENCODED_BYTES``.
        """
        with opened(path) as (fd, stamp):
            if nbytes:
                _require_size(path, stamp.nbytes, nbytes)
            return self._read(fd, path, path, stamp, 0)

    def read_range(self, path: bytes, file_bytes: int, offset: int, nbytes: int) -> memoryview:
        """Returns a range of a file, valid until the next call.

        Args:
            path: path of the file.
            file_bytes: size that the file should have.
            offset: offset of the range's first byte.
            nbytes: size of the range.

        Raises:
            Unavailable: the file cannot be read, or has another size.
            TooLarge: the range has more than ``MOST_ENCODED_BYTES``.
        """
        with opened(path) as (fd, stamp):
            _require_size(path, stamp.nbytes, file_bytes)
            if offset + nbytes > file_bytes:
                raise Unavailable(f"{os.fsdecode(path)!r} ends before byte {offset + nbytes}")
            cache_key = b"%b\0%d" % (path, offset)
            return self._read(fd, path, cache_key, FileStamp(nbytes, stamp.mtime_ns), offset)

    def _read(
        self, fd: int, path: bytes, cache_key: bytes, stamp: FileStamp, offset: int
    ) -> memoryview:
        found = stamp.nbytes
        if found > MOST_ENCODED_BYTES:
            raise TooLarge(
                f"{os.fsdecode(path)!r} has {found} bytes, the most are {MOST_ENCODED_BYTES}"
            )
        cached = None if self._cache is None else self._cache.get(cache_key, stamp)
        if cached is not None:
            return memoryview(cached)
        wanted = self._memory(found)
        done = 0
        while done < found and (count := os.preadv(fd, [wanted[done:]], offset + done)):
            done += count
        self.bytes_read += done
        if done < found:
            raise Unavailable(f"{os.fsdecode(path)!r} became shorter while it was read")
        if self._cache is not None:
            self._cache.put(cache_key, stamp, wanted)
        return wanted

    def _memory(self, nbytes: int) -> memoryview:
        if nbytes > _BUFFER_BYTES:
            return memoryview(bytearray(nbytes))
        if nbytes > len(self._buffer):
            self._buffer = memoryview(bytearray(nbytes))
        return self._buffer[:nbytes]
