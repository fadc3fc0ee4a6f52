"""Names of the samples of a dataset of ranges, for messages.

Native workers import this module, so it imports neither numpy nor torch.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol


class SampleNames(Protocol):
    """Names samples in messages. Pickled to workers, which unpickle it for their first message."""

    def name(self, file: str, offset: int, item: int) -> str:
        """Returns a sample's name, such as ``train-003.tar: cats/5.jpg``.

        Args:
            file: path or URL of the sample's file.
            offset: offset of the sample's first byte in the file.
            item: number of the sample in the dataset.
        """


class OffsetNames:
    """Names samples by the offset of their bytes: ``train-003.tar: byte 1536``."""

    def name(self, file: str, offset: int, item: int) -> str:
        """Returns the name of the file and the offset; ``item`` is not used."""
        return f"{os.path.basename(file)}: byte {offset}"


class SubsetNames:
    """Names samples of a ``Subset`` as its inner dataset does."""

    def __init__(self, names: SampleNames, indices: array[int]) -> None:
        """``indices`` are the samples' numbers in the inner dataset, an array of type ``q``."""
        self._names, self._indices = names, indices

    def name(self, file: str, offset: int, item: int) -> str:
        return self._names.name(file, offset, self._indices[item])


class RowNames:
    """Names samples by their shard and their number in it: ``train-003.parquet: row 17``."""

    def __init__(self, shards: Sequence[str], counts: Sequence[int], word: str = "row") -> None:
        """Takes the shards of a dataset.

        Args:
            shards: paths, in the order of the dataset.
            counts: number of samples of each shard.
            word: word for a sample.
        """
        self._shards = tuple(map(os.path.basename, shards))
        self._firsts = tuple(accumulate(counts, initial=0))[:-1]
        self._word = word

    def name(self, file: str, offset: int, item: int) -> str:
        shard = bisect_right(self._firsts, item) - 1
        return f"{self._shards[shard]}: {self._word} {item - self._firsts[shard]}"
