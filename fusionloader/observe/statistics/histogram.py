"""A distribution of durations, counted in buckets of which the bounds never change."""

from __future__ import annotations

import bisect
import itertools

# From a microsecond to half an hour, 24 for each power of ten. Every eighth bound is one of the
# coarse buckets, whose counts are exact therefore.
PER_DECADE, COARSE = 24, 8
BOUNDS = tuple(float(f"{10 ** (number / PER_DECADE - 6):.4g}") for number in range(225))


class Histogram:
    """Counts durations; one thread adds at a time, any may read meanwhile."""

    def __init__(self) -> None:
        self._buckets = [0] * (len(BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        """Counts a duration."""
        self._buckets[bisect.bisect_left(BOUNDS, seconds)] += 1

    def counts(self) -> list[int]:
        """Returns how many there are in each bucket; the last one has no upper bound."""
        return self._buckets.copy()


def quantiles(counts: list[int], shares: tuple[float, ...]) -> tuple[float | None, ...]:
    """Returns the seconds that such shares of the durations do not exceed, within 5 %.

    ``None`` where nothing was counted.
    """
    below = list(itertools.accumulate(counts))
    return tuple(_quantile(share, below) for share in shares)


def _quantile(share: float, below: list[int]) -> float | None:
    """``below`` has how many durations there are up to the end of each bucket."""
    if not below[-1]:
        return None
    bucket = min(bisect.bisect_left(below, share * below[-1]), len(BOUNDS) - 1)
    return float(BOUNDS[bucket] / 10 ** (0.5 / PER_DECADE))  # the middle of the bucket
