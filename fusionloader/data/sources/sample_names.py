"""What messages call the samples of a dataset of ranges.

Native workers import this: neither numpy nor torch is imported here.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol


class SampleNames(Protocol):
    """Names samples in messages. Pickled to workers, and unpickled where there is a message."""

    def name(self, file: str, offset: int, item: int) -> str:
        """Returns a sample's name: ``train-003.tar: cats/5.jpg``.

        Args:
            file: path or URL of the sample's file.
            offset: of its first byte there.
            item: its number in the dataset.
        """


class OffsetNames:
    """Names samples by the place of their bytes: ``train-003.tar: byte 1536``."""

    def name(self, file: str, offset: int, item: int) -> str:
        """See ``SampleNames``."""
        return f"{os.path.basename(file)}: byte {offset}"


class SubsetNames:
    """Names samples of a ``Subset`` as the dataset within does."""

    def __init__(self, names: SampleNames, indices: array[int]) -> None:
        """``indices`` are the samples' numbers in the dataset within, of type ``q``."""
        self._names, self._indices = names, indices

    def name(self, file: str, offset: int, item: int) -> str:
        """See ``SampleNames``."""
        return self._names.name(file, offset, self._indices[item])


class RowNames:
    """Names samples by their shard and their number in it."""

    def __init__(self, shards: Sequence[str], counts: Sequence[int], word: str = "row") -> None:
        """Takes the shards and how many samples each has.

        Args:
            shards: paths, in the order of the dataset.
            counts: samples of each.
            word: for a sample.
        """
        self._shards = tuple(map(os.path.basename, shards))
        self._firsts = tuple(accumulate(counts, initial=0))[:-1]
        self._word = word

    def name(self, file: str, offset: int, item: int) -> str:
        """See ``SampleNames``."""
        shard = bisect_right(self._firsts, item) - 1
        return f"{self._shards[shard]}: {self._word} {item - self._firsts[shard]}"
