"""Images that are values of LMDB databases, as ranges of the database file."""

from __future__ import annotations

import os

import lmdb
import numpy as np

from fusionloader.data.sources.byte_ranges import ByteRanges
from fusionloader.data.sources.encoded_images import EncodedImages, Transform
from fusionloader.data.sources.ranged_samples import ShardTargets, no_targets
from fusionloader.data.sources.shards.mapped_files import MappedFiles
from fusionloader.data.sources.shards.packed.lmdb_keys import (
    KeyNames,
    KeyPattern,
    database_file,
    open_database,
    some_keys,
)
from fusionloader.system.amounts import counted


class LMDBImages(EncodedImages):
    """Encoded images in an LMDB database that is not written to.

    LMDB stores a value in one piece of its file, so workers read the file and do not open the
    database. A later write to the database changes the file and makes reading it an error.
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
        """Finds the ranges of the values.

        Args:
            path: path of the database: a folder, or the file itself.
            image: pattern of the images' keys, with one ``*``: ``"image-*"``. Samples are in the
                order of the keys.
            target: pattern of the targets' keys, in which ``*`` stands for the same text as in the
                image's key: ``"label-*"``. ``None`` for the target -1.
            transform: transform of an image.
            target_transform: transform of a target's text; needed if it is not a decimal number.

        Raises:
            ValueError: no key matches, or a target is missing or is not a number.
            FileNotFoundError: the database does not exist.
        """
        keys = KeyPattern(image, target)
        offsets, lengths, texts = [], [], []
        with open_database(path) as environment, environment.begin(buffers=True) as transaction:
            mapped = MappedFiles()
            before = os.stat(database_file(path)).st_mtime_ns
            for key, value in keys.images(transaction):
                address = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
                offsets.append(address)
                lengths.append(len(value))
                if target is not None:
                    texts.append(_text(transaction, keys.target_key(key), key, path))
            if not offsets:
                raise ValueError(
                    f"{os.fspath(path)!r} has no keys {image!r}; it has {some_keys(transaction)}: "
                    'choose with image="..."'
                )
            place = mapped.find_place(min(offsets))
            if place is None or max(offsets) - min(offsets) >= place.available:
                raise OSError(f"{os.fspath(path)!r} is not mapped as one file")
        if os.stat(place.path).st_mtime_ns != before:
            raise ValueError(f"{os.fspath(path)!r} was written to while it was indexed: try again")
        addresses = np.array(offsets, np.uint64)
        starts = addresses - np.uint64(min(offsets)) + np.uint64(place.offset)
        super().__init__(
            ByteRanges((place.path,), np.zeros(len(starts), np.uint32), starts, lengths),
            _targets(texts, path, has_transform=target_transform is not None)
            if target is not None
            else no_targets(len(starts)),
            transform=transform,
            target_transform=target_transform,
            names=KeyNames(os.fspath(path), keys),
        )

    def describe(self) -> str:
        return f"{counted(len(self), 'value')} of a database"


def _text(
    transaction: lmdb.Transaction, key: bytes, image: bytes, path: str | os.PathLike[str]
) -> str:
    value = transaction.get(key)
    if value is None:
        raise ValueError(
            f"{os.fspath(path)!r} has no key {key!r} for image {image!r}; its keys are "
            f'{some_keys(transaction)}: choose with target="..."'
        )
    return bytes(value).decode(errors="replace")


def _targets(
    texts: list[str], path: str | os.PathLike[str], *, has_transform: bool
) -> ShardTargets:
    if has_transform:
        return list(texts)
    try:
        return np.array([int(text) for text in texts], np.int64)
    except ValueError as error:
        raise ValueError(
            f"targets of {os.fspath(path)!r} are no integers ({error}): give a target_transform"
        ) from error
