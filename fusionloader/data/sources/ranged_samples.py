"""Ranges and targets of a dataset, moved to shared memory when a loader's workers need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.sources.byte_ranges import ByteRanges

Targets = Sequence[Any] | npt.NDArray[Any]
ShardTargets = npt.NDArray[np.int64] | list[Any]
NO_TARGET = -1
"""Target of samples whose source has none, as in torchvision's ``STL10``."""


class RangedSamples:
    """The samples of a dataset of ranges.

    Attributes:
        ranges: ranges of N samples.
        targets: a read-only int64 array, or the sequence that was given.
        has_integers: whether ``targets`` is that array.
    """

    __slots__ = ("_table", "has_integers", "ranges", "targets")

    def __init__(self, ranges: ByteRanges, targets: Targets) -> None:
        """Raises ValueError if the numbers of targets and ranges differ."""
        if len(ranges) != len(targets):
            raise ValueError(f"{len(ranges)} samples have {len(targets)} targets")
        integers = _integers(targets)
        self.ranges: ByteRanges = ranges
        self.has_integers: bool = integers is not None
        self.targets: Targets = targets if integers is None else integers
        self._table: DatasetTable | None = None

    def __reduce__(self) -> tuple[type[RangedSamples], tuple[ByteRanges, Targets]]:
        return RangedSamples, (self.ranges, self.targets)  # the table is of one process

    def table(self) -> DatasetTable:
        """Returns the samples in shared memory. The first call moves the arrays there.

        Each array is freed before the next one is copied, which limits the peak: 100 million
        samples take 2 GB.

        Raises:
            SharedMemoryExhausted: there is not enough shared memory.
        """
        if self._table is None:
            assert self.has_integers
            ranges = self.ranges
            table = _empty_table(ranges, len(ranges))
            assert table.ranges is not None
            table.ranges[:] = ranges.packed
            ranges.hold(table.ranges, ranges.nbytes)
            table.sizes[:] = ranges.nbytes
            ranges.hold(ranges.packed, table.sizes)
            table.targets[:] = self.targets
            self.targets = table.targets.view()
            self.targets.flags.writeable = False
            self._table = table
        return self._table

    def subset_table(self, indices: npt.NDArray[np.int64]) -> DatasetTable:
        """Returns a new table of some of the samples in shared memory."""
        assert self.has_integers
        table = _empty_table(self.ranges, len(indices))
        assert table.ranges is not None
        np.take(self.ranges.packed, indices, out=table.ranges)
        np.take(self.ranges.nbytes, indices, out=table.sizes)
        np.take(np.asarray(self.targets), indices, out=table.targets)
        return table


def _empty_table(ranges: ByteRanges, count: int) -> DatasetTable:
    return DatasetTable.of_ranges(ranges.files, ranges.stamps, count, ranges.are_remote)


def _integers(targets: Targets) -> npt.NDArray[np.int64] | None:
    """Returns targets as a read-only int64 array; ``None`` if they are not plain integers."""
    if isinstance(targets, np.ndarray):
        if targets.ndim != 1 or targets.dtype.kind not in "iu":
            return None
    elif len(targets) and set(map(type, targets)) != {int}:
        return None
    values = np.asarray(targets)
    if values.dtype.kind == "u" and len(values) and values.max() >= 1 << 63:
        return None
    found = values.astype(np.int64)  # a copy, since workers get one, too
    found.flags.writeable = False
    return found


def are_int64(values: Sequence[Any]) -> bool:
    """Whether all values are Python ints of at most 64 bits."""
    if not set(map(type, values)) <= {int}:
        return False
    return not values or (min(values) >= -(1 << 63) and max(values) < 1 << 63)


def no_targets(count: int) -> npt.NDArray[np.int64]:
    return np.full(count, NO_TARGET, np.int64)


def joined(parts: Sequence[ShardTargets]) -> ShardTargets:
    """Returns the targets of shards as one array, or as one list if a part is a list."""
    if any(isinstance(part, list) for part in parts):
        lists = [part if isinstance(part, list) else part.tolist() for part in parts]
        return [target for part in lists for target in part]
    return np.concatenate(parts) if parts else no_targets(0)
