"""Names of samples that follow each other in shards: ``train-003.parquet: row 17``."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


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
