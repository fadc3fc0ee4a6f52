"""Reads a range of a file, after checking that the file has not changed since it was indexed.

Native workers import this module, so it imports neither NumPy nor torch.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from fusionloader.transforms.executors.native import MOST_ENCODED_BYTES

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")


class FileRange(NamedTuple):
    """A range of a file or URL.

    Attributes:
        file: path or URL of the file.
        offset: offset of the first byte.
        nbytes: length of the range in bytes, 0 for the whole file.
        file_bytes: size of the file when it was indexed, 0 if unknown.
        mtime_ns: modification time of the file when it was indexed, in ns, 0 if unknown.
    """

    file: str
    offset: int
    nbytes: int
    file_bytes: int = 0
    mtime_ns: int = 0

    @classmethod
    def of(cls, found: tuple[bytes, int, int, int, int]) -> FileRange:
        """Makes a range from ``DatasetTable.range``."""
        return cls(os.fsdecode(found[0]), *found[1:])


class FileStamp(NamedTuple):
    """Size of a file and time of its modification, in ns, which change when its contents do."""

    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, info: os.stat_result) -> FileStamp:
        return cls(info.st_size, info.st_mtime_ns)


class ShardChanged(OSError):
    """A file has changed since its samples were indexed; the text says what to do."""


def is_url(file: str) -> bool:
    """Whether a file is named by a URL, such as ``s3://bucket/train-000.tar``."""
    return _URL.match(file) is not None


def read_range(where: FileRange, name: Callable[[], str] | None = None) -> bytes:
    """Returns the bytes of a range of a local file, or of all of it.

    Args:
        where: the range.
        name: returns the sample's name for messages.

    Raises:
        ShardChanged: the file is missing, has another size or modification time, or ends early.
        OSError: it cannot be read, is no regular file, or is a whole file of more than 256 MiB.
    """
    if not where.nbytes:
        return _read_whole(where.file)
    try:
        fd = os.open(where.file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ShardChanged(_text(where, name, "is gone")) from error
    try:
        info = os.fstat(fd)
        if info.st_size != where.file_bytes:
            why = f"has {info.st_size} bytes, and had {where.file_bytes} when it was indexed"
            raise ShardChanged(_text(where, name, why))
        if info.st_mtime_ns != where.mtime_ns:
            raise ShardChanged(_text(where, name, "was modified after it was indexed"))
        parts, done = [], 0
        while done < where.nbytes:
            left = min(where.nbytes, info.st_size - where.offset) - done
            part = os.pread(fd, left, where.offset + done) if left > 0 else b""
            if not part:
                why = f"ends before byte {where.offset + where.nbytes}, where the sample does"
                raise ShardChanged(_text(where, name, why))
            parts.append(part)
            done += len(part)
    finally:
        os.close(fd)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading.

    Raises:
        OSError: it cannot be opened, or is a FIFO, for whose writer it would wait.
    """
    file = open(  # noqa: SIM115 - returned open
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    )
    if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.ESPIPE, "is a FIFO, and should be a file", path)
    return file


def _read_whole(path: str) -> bytes:
    with open_file(path) as file:
        if (nbytes := os.fstat(file.fileno()).st_size) > MOST_ENCODED_BYTES:
            raise OSError(
                errno.EFBIG, f"has {nbytes} bytes, the most are {MOST_ENCODED_BYTES}", path
            )
        return file.read()


def _text(where: FileRange, name: Callable[[], str] | None, why: str) -> str:
    sample = "" if name is None else f"; the sample is {name()}"
    remedy = "put back the file, or index it again"
    return f"{where.file!r} {why}{sample}: {remedy} (make the dataset anew)"
