"""What identifies the files of a dataset, for all loaders, ranks and jobs of a machine."""

from __future__ import annotations

import hashlib
import os
import sys

from fusionloader.cache.tiers.dataset_table import DatasetTable


def of_table(table: DatasetTable) -> str:
    """Returns a digest of paths and ranges, which loaders that number these alike share."""
    digest = hashlib.blake2b(table.blob.data, digest_size=16, person=b"files of a table")
    if table.ranges is not None:
        digest.update(table.ranges.data)
        digest.update(table.sizes.data)
    if len(table) and not table.is_remote and not table.path(0).startswith(b"/"):
        digest.update(os.fsencode(os.getcwd()))
    return digest.hexdigest()


def of_places(places: int) -> str:
    """Returns a digest for files that user code opens, found by hashing in so many places.

    They are told by device, inode, size and time: of which dataset they are does not matter. The
    hashes are Python's.
    """
    text = f"{places} {sys.hash_info} {sys.implementation.cache_tag}"
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"files of code").hexdigest()


def name_of(table: DatasetTable) -> str:
    """Returns the dataset's folder, for people: that of the first shard, or of the first class."""
    if not len(table):
        return ""
    folder = os.path.dirname(table.path(0))
    return os.fsdecode(folder if table.ranges is not None else os.path.dirname(folder))
