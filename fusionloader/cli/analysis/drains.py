"""How fast a loader is by itself, and what its workers spend on a sample."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusionloader.cli.analysis.probes import end, forever
from fusionloader.cli.analysis.replay import batch_length
from fusionloader.loader import FusionLoader
from fusionloader.observe.statistics.snapshot import LoaderStats
from fusionloader.observe.statistics.stages import StageStats
from fusionloader.options.aliases import AnyLoader, Batch

_FEWEST = 2  # mini-batches of a drain


@dataclass(frozen=True, slots=True)
class Drain:
    """What a loader delivers to a consumer that takes batches as fast as they come.

    Attributes:
        workers: number of its workers.
        samples: number of counted samples.
        seconds: they took.
        delivery_seconds: processor time of this process for a batch.
        stages: what workers spent where; empty for torch's ``DataLoader``.
        hit_share: fraction of samples that came from a decoded cache.
        stored_bytes: bytes of the cache for a sample; 0 without one.
        cpu_seconds: processor time that workers counted for the samples; 0 if they count nothing.
    """

    workers: int
    samples: int
    seconds: float
    delivery_seconds: float = 0.0
    stages: tuple[StageStats, ...] = ()
    hit_share: float = 0.0
    stored_bytes: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def service_seconds(self) -> float:
        """Seconds of one worker for a sample, all that comes with it included."""
        return max(1, self.workers) * self.seconds / self.samples


def drain(loader: AnyLoader, seconds: float, settle: int = 0) -> Drain:
    """Takes batches for so long; the loader's workers end with it.

    Args:
        loader: one without end.
        seconds: duration of the measurement.
        settle: mini-batches to take first, beside those that the workers begin with.
    """
    batches = forever(loader)
    try:
        for _ in range(settle + _unsettled(loader)):
            next(batches)
        before = loader.stats() if isinstance(loader, FusionLoader) else None
        drained = _take(batches, loader, seconds)
        if before is None or not isinstance(loader, FusionLoader):
            return drained
        return _with_stats(drained, before, loader.stats())
    finally:
        batches.close()
        end(loader)


def _unsettled(loader: AnyLoader) -> int:
    """Returns the first mini-batches, which cost more than later ones."""
    if not isinstance(loader, FusionLoader):
        return max(1, loader.num_workers)  # they come in bursts
    # The pages of each slot are touched for the first time; one beyond those ahead is delivered.
    return loader.num_workers * (loader.prefetch_factor or 2) + 2


def _take(batches: Iterator[Batch], loader: AnyLoader, seconds: float) -> Drain:
    counted = samples = 0
    # Those ahead may all be ready, and none of what they cost is in this measurement.
    fewest = max(_FEWEST, _unsettled(loader))
    started, cpu = time.perf_counter(), time.thread_time()
    now = started
    while now - started < seconds or counted < fewest:
        samples += batch_length(next(batches)) or loader.batch_size or 1
        counted += 1
        now = time.perf_counter()
    # Wall time would have the waits for batches, and for a core, in it.
    per_batch = (time.thread_time() - cpu) / counted if loader.num_workers else 0.0
    return Drain(loader.num_workers, samples, now - started, per_batch)


def _with_stats(drained: Drain, before: LoaderStats, after: LoaderStats) -> Drain:
    earlier = {stage.name: stage for stage in before.stages}
    stages = []
    for stage in after.stages:
        known = earlier.get(stage.name)
        samples = stage.samples - (known.samples if known else 0)
        seconds = stage.seconds - (known.seconds if known else 0.0)
        if samples > 0 and seconds > 0:
            capacity = max(1, drained.workers) * samples / seconds
            stages.append(StageStats(stage.name, samples, seconds, capacity))
    hits, misses = _asked_of_cache(before, after)
    kept = after.decoded_cache
    return replace(
        drained,
        stages=tuple(stages),
        hit_share=hits / (hits + misses) if hits else 0.0,
        stored_bytes=kept.bytes / kept.images if kept is not None and kept.images else 0.0,
        cpu_seconds=after.processors.cpu_seconds - before.processors.cpu_seconds,
    )


def _asked_of_cache(before: LoaderStats, after: LoaderStats) -> tuple[int, int]:
    """Returns hits and misses in between.

    The stages' samples are counted at other moments, which tells among a few mini-batches.
    """
    if before.cache is None or after.cache is None:
        return 0, 0
    return after.cache.hits - before.cache.hits, after.cache.misses - before.cache.misses
