"""Images in LMDB databases: values that are encoded images, where the file has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import lmdb
import numpy as np

from fusionloader.sources.byte_ranges import ByteRanges
from fusionloader.sources.encoded_images import EncodedImages, Transform
from fusionloader.sources.shards.mapped_files import MappedFiles
from fusionloader.sources.shards.targets import Targets, no_targets


class LMDBImages(EncodedImages):
    """Encoded images in an LMDB database, which nothing may write to meanwhile.

    A value of LMDB is one piece of its file, so workers read it there and do not open the
    database. What is written to the database later changes its file, and is an error.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        image: str = "*",
        target: str | None = None,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        """Looks up where the values are.

        Args:
            path: of the database: a folder, or the file itself.
            image: keys of images, with one ``*``: ``"image-*"``. Samples are in the keys' order.
            target: the key of an image's target, ``*`` for what it is in the image's:
                ``"label-*"``. ``None`` for -1.
            transform: of an image.
            target_transform: of a target's text; needed where it is no decimal number.

        Raises:
            ValueError: there are no such keys, or a target is missing or no number.
            FileNotFoundError: there is no such database.
        """
        keys = KeyPattern(image, target)
        offsets, lengths, texts = [], [], []
        with _opened(path) as environment, environment.begin(buffers=True) as transaction:
            mapped = MappedFiles()
            before = os.stat(_file_of(path)).st_mtime_ns
            for key, value in keys.images(transaction):
                address = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
                offsets.append(address)
                lengths.append(len(value))
                if target is not None:
                    texts.append(_text(transaction, keys.target_of(key), key, path))
            if not offsets:
                raise ValueError(
                    f"{os.fspath(path)!r} has no keys {image!r}; it has {_some_keys(transaction)}: "
                    'choose with image="..."'
                )
            place = mapped.place_of(min(offsets))
            if place is None or max(offsets) - min(offsets) >= place.room:
                raise OSError(f"{os.fspath(path)!r} is not mapped as one file")
        if os.stat(place.path).st_mtime_ns != before:
            raise ValueError(f"{os.fspath(path)!r} was written to while it was indexed: try again")
        addresses = np.array(offsets, np.uint64)
        starts = addresses - np.uint64(min(offsets)) + np.uint64(place.offset)
        super().__init__(
            ByteRanges((place.path,), np.zeros(len(starts), np.uint32), starts, lengths),
            _targets(texts, len(starts), path, has_transform=target_transform is not None)
            if target is not None
            else no_targets(len(starts)),
            transform=transform,
            target_transform=target_transform,
            names=KeyNames(os.fspath(path), keys),
        )


class KeyPattern:
    """The keys of images and of their targets."""

    def __init__(self, image: str, target: str | None) -> None:
        """Takes the patterns.

        Raises:
            ValueError: not one ``*`` in each.
        """
        for pattern in (image, target):
            if pattern is not None and pattern.count("*") != 1:
                raise ValueError(f'pattern {pattern!r} has not one "*", as in "image-*"')
        self._before, self._after = (part.encode() for part in image.split("*"))
        self._target = None if target is None else [part.encode() for part in target.split("*")]

    def images(self, transaction: lmdb.Transaction) -> Iterator[tuple[bytes, Any]]:
        """Gives the keys and values of images, in the keys' order."""
        cursor = transaction.cursor()
        if not cursor.set_range(self._before):
            return
        for key, value in cursor:
            name = bytes(key)
            if not name.startswith(self._before):
                return
            if name.endswith(self._after) and len(name) >= len(self._before) + len(self._after):
                yield name, value

    def target_of(self, key: bytes) -> bytes:
        """Returns the key of an image's target."""
        assert self._target is not None
        part = key[len(self._before) : len(key) - len(self._after)]
        return self._target[0] + part + self._target[1]


class KeyNames:
    """Names samples by their keys: ``train.lmdb: image-000017``."""

    def __init__(self, path: str, keys: KeyPattern) -> None:
        """Takes the database and the keys of its images."""
        self._path, self._keys = path, keys

    def name(self, file: str, offset: int, item: int) -> str:
        """See ``SampleNames``. Keys are looked up, not kept."""
        where = os.path.basename(os.path.normpath(self._path))
        try:
            with _opened(self._path) as environment, environment.begin(buffers=True) as transaction:
                for number, (key, _) in enumerate(self._keys.images(transaction)):
                    if number == item:
                        return f"{where}: {key.decode(errors='replace')}"
        except (lmdb.Error, FileNotFoundError):  # gone since: the error is about something else
            pass
        return f"{where}: byte {offset}"


def _file_of(path: str | os.PathLike[str]) -> str:
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else os.fspath(path)


def _opened(path: str | os.PathLike[str]) -> lmdb.Environment:
    file = _file_of(path)
    if not os.path.exists(file):
        raise FileNotFoundError(f"{file!r} is not there: give the folder or file of a database")
    try:
        # Without a lock: the folder may be read-only, and changes are seen by the file's time.
        return lmdb.open(
            os.fspath(path), subdir=os.path.isdir(path), readonly=True, lock=False, create=False
        )
    except lmdb.Error as error:
        raise ValueError(f"{file!r} is no LMDB database ({error}): download it again") from error


def _text(
    transaction: lmdb.Transaction, key: bytes, image: bytes, path: str | os.PathLike[str]
) -> str:
    value = transaction.get(key)
    if value is None:
        raise ValueError(
            f"{os.fspath(path)!r} has no key {key!r} for image {image!r}; its keys are "
            f'{_some_keys(transaction)}: choose with target="..."'
        )
    return bytes(value).decode(errors="replace")


def _targets(
    texts: list[str], count: int, path: str | os.PathLike[str], *, has_transform: bool
) -> Targets:
    if has_transform:
        return list(texts)
    try:
        return np.array([int(text) for text in texts], np.int64)
    except ValueError as error:
        raise ValueError(
            f"targets of {os.fspath(path)!r} are no integers ({error}): give a target_transform"
        ) from error


def _some_keys(transaction: lmdb.Transaction) -> str:
    cursor = transaction.cursor()
    keys = islice(cursor.iternext(values=False), 4)
    found = [bytes(key).decode(errors="replace") for key in keys]
    return ", ".join(map(repr, found)) + ", ..." if found else "none"
