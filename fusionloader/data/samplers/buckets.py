"""Divides samples into buckets by their keys, with arrays alone and little extra memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusionloader.data.samplers.batch_limit import Keys
from fusionloader.data.samplers.batch_order import Indices, make_generator, smallest_unsigned

Boundaries = NDArray[np.float64]
Numbers = NDArray[np.uint16]

_MOST_BUCKETS = 1 << 16
_BLOCK = 1 << 20  # samples processed at a time: each 64-bit intermediate takes 8 MiB
_QUANTILE_SAMPLES = 1 << 20  # larger datasets are subsampled for their quantiles


@dataclass(frozen=True, slots=True)
class Division:
    """A division of samples by a function of their keys, at ascending boundaries."""

    value_of: Callable[[Keys], NDArray[Any]]
    boundaries: Boundaries

    def numbers(self, keys: Keys) -> NDArray[np.int64]:
        """Returns for each key the number of boundaries that are at most its value."""
        return np.searchsorted(self.boundaries, self.value_of(keys), side="right")


@dataclass(frozen=True, slots=True)
class Buckets:
    """The samples of each bucket. No bucket is empty.

    Attributes:
        members: sample indices, bucket by bucket, ascending within a bucket.
        starts: start of each bucket in ``members``, followed by the number of samples.
    """

    members: Indices
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def slices(self) -> Iterator[slice]:
        """Yields the slice of each bucket in ``members``."""
        for start, stop in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            yield slice(start, stop)


def checked_boundaries(boundaries: ArrayLike) -> Boundaries:
    """Returns boundaries as an array.

    Raises:
        ValueError: they do not ascend, or are not finite numbers.
    """
    found = np.asarray(boundaries, np.float64)
    if found.ndim != 1 or not np.isfinite(found).all() or (np.diff(found) <= 0).any():
        raise ValueError(f"boundaries should be finite numbers that ascend, not {boundaries!r}")
    return found


def quantile_boundaries(
    keys: Keys, value_of: Callable[[Keys], NDArray[Any]], count: int
) -> Boundaries:
    """Returns boundaries of at most ``count`` buckets with about equally many samples.

    Equal keys make fewer buckets. Of more than a million samples a million are used, the same ones
    in every process.
    """
    if len(keys) > _QUANTILE_SAMPLES:
        keys = keys[make_generator(0).integers(0, len(keys), _QUANTILE_SAMPLES)]
    values = value_of(keys)
    at = np.arange(1, count) / count
    found = np.unique(np.quantile(values, at, method="higher").astype(np.float64))
    return np.asarray(found[found > values.min()])


def geometric_boundaries(smallest: float, largest: float, factor: float) -> Boundaries:
    """Returns boundaries between two keys, each ``factor`` times the one before."""
    steps = int(np.ceil(np.log(largest / smallest) / np.log(factor)))
    return np.asarray(smallest * factor ** np.arange(1, max(steps, 1)), np.float64)


def blocks(count: int) -> Iterator[slice]:
    """Yields slices of at most ``_BLOCK`` samples that cover ``count`` samples."""
    for start in range(0, count, _BLOCK):
        yield slice(start, min(start + _BLOCK, count))


def bucket_numbers(keys: Keys, divisions: Sequence[Division]) -> tuple[Numbers, int]:
    """Returns the bucket of each sample, by all divisions together, and the number of buckets.

    Raises:
        ValueError: the divisions make more than 65,535 buckets.
    """
    count = 1
    for division in divisions:
        count *= len(division.boundaries) + 1
    if count >= _MOST_BUCKETS:  # one more bucket is for samples above the budget
        raise ValueError(f"{count} buckets are {_MOST_BUCKETS} or more: give fewer boundaries")
    numbers = np.zeros(len(keys), np.uint16)
    for block in blocks(len(keys)):
        for division in divisions:
            numbers[block] *= np.uint16(len(division.boundaries) + 1)
            numbers[block] += division.numbers(keys[block]).astype(np.uint16)
    return numbers, count


def grouped(numbers: Numbers, count: int) -> Buckets:
    """Groups samples by the number of their bucket, which is below ``count``.

    The result takes 4 bytes a sample for up to 4 billion samples.
    """
    counts = np.zeros(count, np.int64)
    for block in blocks(len(numbers)):
        counts += np.bincount(numbers[block], minlength=count)
    free = np.cumsum(counts) - counts  # next free place of each bucket in members
    filled = np.flatnonzero(counts)
    starts = np.append(free[filled], len(numbers))
    members = np.empty(len(numbers), smallest_unsigned(len(numbers)))
    for block in blocks(len(numbers)):
        order = np.argsort(numbers[block], kind="stable")
        many = np.bincount(numbers[block], minlength=count)
        first = np.cumsum(many) - many
        for number in np.flatnonzero(many):
            found = order[first[number] : first[number] + many[number]]
            members[free[number] : free[number] + many[number]] = found + block.start
        free += many
    return Buckets(members, starts)
