"""How much of a dataset a cache has to hold (Mohan et al., PVLDB 14(5), 2021, §5.1)."""

from __future__ import annotations


def rate_with_cache(share: float, cached: float, uncached: float) -> float:
    """Returns samples per second, equation (2) of the paper.

    Args:
        share: of the samples in the cache, which evicts nothing.
        cached: samples per second of those that are in it.
        uncached: samples per second of the others.
    """
    return 1 / (share / cached + (1 - share) / uncached)


def share_for(rate: float, cached: float, uncached: float) -> float | None:
    """Returns the least share with which a rate is reached; ``None`` where no cache does."""
    if uncached >= rate:
        return 0.0
    if cached < rate:
        return None
    return (1 / uncached - 1 / rate) / (1 / uncached - 1 / cached)
