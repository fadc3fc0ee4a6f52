"""Saves a file store to a file, and loads it."""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fusionloader.cache.tiers.file_store import FILLED, RECORD, FileStore

_MAGIC = b"FusionLoader index 2\n\0\0\0"
_HEADER = struct.Struct("<24s32sQQI")  # magic, fingerprint, records and data in bytes, checksum
_CHUNK = 1 << 24
_LOOKED_AT = 64


class SavedStoreMismatch(ValueError):
    """The file is damaged, or was saved for another dataset."""


def fingerprint(paths: Sequence[bytes]) -> bytes:
    """Returns a digest of paths relative to their common folder."""
    if len(set(map(os.path.isabs, paths))) > 1:
        paths = [os.path.abspath(path) for path in paths]
    folder = os.path.commonpath(paths)
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.path.relpath(path, folder) + b"\0" if len(paths) > 1 else path)
    return digest.digest()


def save(store: FileStore, path: Path, of_files: bytes) -> None:
    """Writes the current contents of a store, which workers may be filling.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    records = store.filled_records()
    size = int(max(records["offset"] + records["bytes"], default=0))
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with open(partial, "wb") as file:
            file.write(bytes(_HEADER.size))
            file.write(records.tobytes())
            checksum = zlib.crc32(records.tobytes())
            for begin in range(0, size, _CHUNK):
                chunk = store.read(begin, min(_CHUNK, size - begin))
                checksum = zlib.crc32(chunk, checksum)
                file.write(chunk)
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, of_files, records.nbytes, size, checksum))
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def load(
    store: FileStore, path: Path, of_files: bytes, stamp_of: Callable[[int], tuple[int, int]]
) -> None:
    """Fills an empty store. ``stamp_of`` returns bytes and mtime in ns of a file by its number.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: the file cannot be read, or there is too little memory.
        SavedStoreMismatch: the file is of another dataset, damaged, or larger than the store, or
            most files have changed.
    """
    with open(path, "rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise SavedStoreMismatch(f"{path} is no saved index")
        _, found, records_size, size, expected = _HEADER.unpack(head)
        if found != of_files:
            raise SavedStoreMismatch(f"{path} was saved for other files")
        if records_size != RECORD.itemsize * store.files or size > store.capacity:
            raise SavedStoreMismatch(
                f"{path} has {size} bytes of data, there is room for {store.capacity}"
            )
        raw = file.read(records_size)
        checksum = zlib.crc32(raw)
        got = 0
        for begin in range(0, size, _CHUNK):
            chunk = file.read(min(_CHUNK, size - begin))
            checksum = zlib.crc32(chunk, checksum)
            store.write(begin, chunk)
            got += len(chunk)
        whole = got == size and len(raw) == records_size and not file.read(1)
        if not whole or checksum != expected:
            raise SavedStoreMismatch(f"{path} is damaged")
    records = np.frombuffer(raw, RECORD)
    if (records["offset"] > size).any() or (records["bytes"] > size - records["offset"]).any():
        raise SavedStoreMismatch(f"{path} is damaged")
    some = np.flatnonzero(records["state"] == FILLED)
    some = some[:: max(1, len(some) // _LOOKED_AT)]
    stamps = records[["file_bytes", "mtime_ns"]][some].tolist()
    changed = sum(map(operator.ne, map(stamp_of, some.tolist()), stamps))
    if 2 * changed > len(some):  # a record of a changed file is not used, and never replaced
        raise SavedStoreMismatch(
            f"{changed} of {len(some)} files looked at have changed since {path} was saved"
        )
    store.take_over(records, size)
