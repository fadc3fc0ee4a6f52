"""What a cache has saved, and what is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusionloader.cache.store_stats import DISK, MEMORY, NAMES_IN_STATS, StoreStats
from fusionloader.system.amounts import mib
from fusionloader.system.shm import cache_counts


@dataclass(frozen=True, slots=True)
class TierStats:
    """A tier of a cache.

    Attributes:
        images: number of images in it, of all loaders.
        bytes: its size in bytes.
        hits: number of samples of this loader that came from it.
    """

    images: int
    bytes: int
    hits: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A ``Cache`` as this loader uses it.

    Attributes:
        hits: samples that came from it.
        misses: samples that were read from storage.
        filled: times that this loader's workers have kept something: a miss, or pixels of what
            was kept as bytes.
        epoch_hits, epoch_misses: hits and misses of the last finished epoch.
        tiers: statistics by name of a tier: ``index``, ``encoded``, ``decoded``, the last two with
            ``disk_`` where they are on a disk, and ``remote`` for other servers.
        bytes: shared memory that all loaders of the budget use, of ``budget`` bytes.
        disk_bytes: disk space used, of ``disk_budget`` bytes.
    """

    hits: int
    misses: int
    filled: int
    epoch_hits: int
    epoch_misses: int
    tiers: Mapping[str, TierStats]
    bytes: int
    budget: int
    disk_bytes: int
    disk_budget: int

    def other_stores(self) -> dict[str, StoreStats]:
        """Returns the tiers without a line of their own in ``stats()``."""
        return {
            name: StoreStats(
                tier.images, tier.bytes, self.disk_budget if "disk" in name else self.budget
            )
            for name, tier in self.tiers.items()
            if name not in NAMES_IN_STATS and name != "remote"
        }

    def explain(self) -> str:
        """Returns a line of what the last epoch got from it."""
        samples = self.epoch_hits + self.epoch_misses
        kept = ", ".join(
            f"{name} {tier.images}" for name, tier in self.tiers.items() if tier.images
        )
        return (
            f"The last epoch got {self.epoch_hits} of {samples} samples from the cache, which "
            f"holds {kept or 'nothing'}, in {mib(self.bytes + self.disk_bytes)} of "
            f"{mib(self.budget + self.disk_budget)}."
        )


def cache_stats(
    counts: Sequence[int], epoch: Sequence[int], kept: Mapping[str, StoreStats]
) -> CacheStats | None:
    """Returns what is known of a loader's cache; ``None`` without one.

    Args:
        counts: counters of the loader's workers, as in ``system/shm/cache_counts.py``.
        epoch: the same of the last epoch alone.
        kept: the stores, and the accounts of the cache.
    """
    if MEMORY not in kept:
        return None
    memory, disk = kept[MEMORY], kept[DISK]
    return CacheStats(
        hits=_hits(counts),
        misses=counts[cache_counts.MISSED],
        filled=counts[cache_counts.FILLED],
        epoch_hits=_hits(epoch),
        epoch_misses=epoch[cache_counts.MISSED],
        tiers=dict(_tiers(counts, kept)),
        bytes=memory.bytes,
        budget=memory.budget,
        disk_bytes=disk.bytes,
        disk_budget=disk.budget,
    )


def _hits(counts: Sequence[int]) -> int:
    return sum(counts[place] for place in cache_counts.HITS)


def _tiers(counts: Sequence[int], kept: Mapping[str, StoreStats]) -> list[tuple[str, TierStats]]:
    found = []
    for name in ("index", *cache_counts.NAMES[: len(cache_counts.HITS)]):
        store = kept.get(NAMES_IN_STATS.get(name, name))
        hits = counts[cache_counts.NAMES.index(name)] if name != "index" else 0
        if store is not None:
            found.append((name, TierStats(store.images, store.bytes, hits)))
        elif hits:
            found.append((name, TierStats(0, 0, hits)))
    return found
