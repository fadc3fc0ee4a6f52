"""Samples put into buckets by their keys, with arrays alone and little memory in passing."""

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
_BLOCK = 1 << 20  # samples that are worked on at a time: their 64-bit intermediates take 8 MiB
_LOOKED_AT = 1 << 20  # samples that the quantiles of larger datasets are taken from


@dataclass(frozen=True, slots=True)
class Division:
    """One way to divide samples: by a function of their keys, at ascending boundaries."""

    of: Callable[[Keys], NDArray[Any]]
    boundaries: Boundaries

    def numbers(self, keys: Keys) -> NDArray[np.int64]:
        """Returns for each key how many boundaries are not above it."""
        return np.searchsorted(self.boundaries, self.of(keys), side="right")


@dataclass(frozen=True, slots=True)
class Buckets:
    """Which samples lie in which bucket; no bucket is empty.

    Attributes:
        members: indices of samples, bucket by bucket, ascending in each.
        starts: where each bucket begins in ``members``, and in the end the number of samples.
    """

    members: Indices
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def slices(self) -> Iterator[slice]:
        """Yields where each bucket lies in ``members``."""
        for start, stop in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            yield slice(start, stop)


def checked_boundaries(boundaries: ArrayLike) -> Boundaries:
    """Returns boundaries as an array.

    Raises:
        ValueError: they do not ascend, or are no finite numbers.
    """
    found = np.asarray(boundaries, np.float64)
    if found.ndim != 1 or not np.isfinite(found).all() or (np.diff(found) <= 0).any():
        raise ValueError(f"boundaries should be finite numbers that ascend, not {boundaries!r}")
    return found


def quantile_boundaries(keys: Keys, of: Callable[[Keys], NDArray[Any]], count: int) -> Boundaries:
    """Returns boundaries of at most ``count`` buckets of about as many samples each.

    There are fewer where keys are equal. Of more than a million samples as many are looked at,
    the same ones in every process.
    """
    if len(keys) > _LOOKED_AT:
        keys = keys[make_generator(0).integers(0, len(keys), _LOOKED_AT)]
    values = of(keys)
    at = np.arange(1, count) / count
    found = np.unique(np.quantile(values, at, method="higher").astype(np.float64))
    return np.asarray(found[found > values.min()])


def geometric_boundaries(smallest: float, largest: float, factor: float) -> Boundaries:
    """Returns boundaries between two keys, each ``factor`` times the one before."""
    steps = int(np.ceil(np.log(largest / smallest) / np.log(factor)))
    return np.asarray(smallest * factor ** np.arange(1, max(steps, 1)), np.float64)


def blocks(count: int) -> Iterator[slice]:
    """Yields slices that together are ``count`` samples."""
    for start in range(0, count, _BLOCK):
        yield slice(start, min(start + _BLOCK, count))


def bucket_numbers(keys: Keys, divisions: Sequence[Division]) -> tuple[Numbers, int]:
    """Returns the bucket of each sample, divided in all ways at once, and how many there can be.

    Raises:
        ValueError: there can be more than 65,535.
    """
    count = 1
    for division in divisions:
        count *= len(division.boundaries) + 1
    if count >= _MOST_BUCKETS:  # one more is for samples above the budget
        raise ValueError(f"{count} buckets are {_MOST_BUCKETS} or more: give fewer boundaries")
    numbers = np.zeros(len(keys), np.uint16)
    for block in blocks(len(keys)):
        for division in divisions:
            numbers[block] *= np.uint16(len(division.boundaries) + 1)
            numbers[block] += division.numbers(keys[block]).astype(np.uint16)
    return numbers, count


def grouped(numbers: Numbers, count: int) -> Buckets:
    """Returns the samples by their bucket's number, which is below ``count``.

    The result has 4 bytes a sample for up to 4 billion of them.
    """
    counts = np.zeros(count, np.int64)
    for block in blocks(len(numbers)):
        counts += np.bincount(numbers[block], minlength=count)
    free = np.cumsum(counts) - counts
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
