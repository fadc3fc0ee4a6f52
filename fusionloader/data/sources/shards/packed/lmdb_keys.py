"""Keys of images and targets in LMDB databases, and names of samples by their keys.

Native workers import this module for messages, so it does not import torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import lmdb

_WALK = """
import lmdb, os, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
path = sys.argv[1]
with lmdb.open(path, subdir=os.path.isdir(path), readonly=True, lock=False, create=False) as found:
    with found.begin(buffers=True) as transaction:
        for key, value in transaction.cursor():
            bytes(value[-1:])
"""


class KeyPattern:
    """The keys of images and of their targets."""

    def __init__(self, image: str, target: str | None) -> None:
        """Takes the patterns.

        Raises:
            ValueError: a pattern does not have exactly one ``*``.
        """
        for pattern in (image, target):
            if pattern is not None and pattern.count("*") != 1:
                raise ValueError(f'pattern {pattern!r} has not one "*", as in "image-*"')
        self._before, self._after = (part.encode() for part in image.split("*"))
        self._target = None if target is None else [part.encode() for part in target.split("*")]

    def images(self, transaction: lmdb.Transaction) -> Iterator[tuple[bytes, Any]]:
        """Yields keys and values of images, in the order of the keys."""
        cursor = transaction.cursor()
        if not cursor.set_range(self._before):
            return
        for key, value in cursor:
            name = bytes(key)
            if not name.startswith(self._before):
                return
            if name.endswith(self._after) and len(name) >= len(self._before) + len(self._after):
                yield name, value

    def target_key(self, key: bytes) -> bytes:
        """Returns the key of the target of the image with ``key``."""
        assert self._target is not None
        part = key[len(self._before) : len(key) - len(self._after)]
        return self._target[0] + part + self._target[1]


class KeyNames:
    """Names samples by their keys: ``train.lmdb: image-000017``."""

    def __init__(self, path: str, keys: KeyPattern) -> None:
        self._path, self._keys = path, keys

    def name(self, file: str, offset: int, item: int) -> str:
        # Keys are looked up for each message, since storing them would take memory.
        where = os.path.basename(os.path.normpath(self._path))
        try:
            with (
                open_database(self._path) as environment,
                environment.begin(buffers=True) as transaction,
            ):
                for number, (key, _) in enumerate(self._keys.images(transaction)):
                    if number == item:
                        return f"{where}: {key.decode(errors='replace')}"
        except (lmdb.Error, FileNotFoundError):  # removed, which another message reports
            pass
        return f"{where}: byte {offset}"


def database_file(path: str | os.PathLike[str]) -> str:
    """Returns the file of a database, whose ``path`` is a folder or the file."""
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else os.fspath(path)


def open_database(path: str | os.PathLike[str]) -> lmdb.Environment:
    """Opens a database for reading.

    Raises:
        FileNotFoundError: it does not exist.
        ValueError: the file is not a database, or it is cut off.
    """
    file = database_file(path)
    if not os.path.exists(file):
        raise FileNotFoundError(f"{file!r} is not there: give the folder or file of a database")
    try:
        # Without a lock: the folder may be read-only, and the file's time shows changes.
        environment = lmdb.open(
            os.fspath(path), subdir=os.path.isdir(path), readonly=True, lock=False, create=False
        )
    except lmdb.Error as error:
        raise ValueError(f"{file!r} is no LMDB database ({error}): download it again") from error
    pages = environment.info()["last_pgno"] + 1
    found, expected = os.stat(file).st_size, pages * environment.stat()["psize"]
    if found < expected and not _can_be_walked(os.fspath(path)):
        environment.close()
        raise ValueError(
            f"{file!r} has {found} bytes, and its pages {expected}: it is cut off; get it again"
        )
    return environment


def _can_be_walked(path: str) -> bool:
    """Whether all of a database can be read, tried in another process.

    The library maps the file, and reading a page beyond its end raises SIGBUS. Missing pages at the
    end are no damage if they are free pages that were never written.
    """
    command = [sys.executable, "-c", _WALK, path]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def some_keys(transaction: lmdb.Transaction) -> str:
    """Returns up to four keys of a database, for messages."""
    cursor = transaction.cursor()
    keys = islice(cursor.iternext(values=False), 4)
    found = [bytes(key).decode(errors="replace") for key in keys]
    return ", ".join(map(repr, found)) + ", ..." if found else "none"
