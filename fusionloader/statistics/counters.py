"""The counters behind ``FusionLoader.stats()``, which all iterators of a loader add to."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from fusionloader.deferred.counts import Counts
from fusionloader.executors.spent import Spent
from fusionloader.statistics.snapshot import LoaderStats, StoreStats, WorkerStats
from fusionloader.statistics.stages import stage_stats, total_capacity
from fusionloader.statistics.totals import WorkerTotals
from fusionloader.statistics.waits import StepObserver, Waits
from fusionloader.workers.messages import SampleSkipped

log = logging.getLogger("fusionloader.loader")

_KEPT_ERRORS = 100

Counted = Callable[[], tuple[WorkerTotals, Counts] | None]
"""Returns what workers have counted; ``None`` when they have ended."""


@dataclass(slots=True)
class WorkerCounters:
    """What workers have counted, of all iterators that have ended, and of the one under way."""

    samples: int = 0
    restarts: int = 0
    borrowed_samples: int = 0
    peak_bytes: int = 0
    busy_seconds: float = 0.0
    pillow_samples: int = 0
    copied_bytes: int = 0
    copy_seconds: float = 0.0
    read_bytes: int = 0
    cache_hits: int = 0
    in_flight: int = 0
    slots: int = 0
    wanted: int = 1
    user_code: bool = True
    part_seconds: list[float] = field(default_factory=list)
    workers: tuple[WorkerStats, ...] = ()

    def add(self, totals: WorkerTotals) -> None:
        """Adds what those of one iterator have counted."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(totals, name))
        for name in ("in_flight", "wanted", "user_code", "workers"):
            setattr(self, name, getattr(totals, name))
        self.slots, self.peak_bytes = totals.memory.slots, totals.memory.peak_bytes
        self.copied_bytes += totals.memory.copied_bytes
        self.copy_seconds += totals.memory.copy_seconds
        self.add_part_seconds(totals.part_seconds)

    def add_part_seconds(self, seconds: Sequence[float]) -> None:
        """Adds the time spent on each part of a plan."""
        pairs = zip_longest(self.part_seconds, seconds, fillvalue=0.0)
        self.part_seconds = [a + b for a, b in pairs]  # a changed plan may have more of them

    def add_spent(self, samples: int, seconds: float, spent: Spent) -> None:
        """Adds what samples have cost that were made elsewhere than by workers of a manager."""
        self.samples += samples
        self.busy_seconds += seconds
        self.read_bytes += spent.read_bytes
        self.cache_hits += spent.cache_hits
        self.add_part_seconds(spent.part_seconds)

    def copy(self) -> WorkerCounters:
        """Returns counters to add to."""
        made = WorkerCounters()
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        return made


_SUMS = (
    "samples",
    "restarts",
    "borrowed_samples",
    "busy_seconds",
    "pillow_samples",
    "read_bytes",
    "cache_hits",
)


@dataclass(slots=True)
class Statistics:
    """Counters since the loader was made; seconds are wall time of the training process.

    Attributes:
        observers: are told of the steps of training.
        iterator: returns the method of the latest iterator with workers that says what they have
            counted so far, and what of deferred images; ``None`` when that iterator is gone.
    """

    batches: int = 0
    samples: int = 0
    skipped: int = 0
    substituted: int = 0
    errors: list[str] = field(default_factory=list)
    gpu_worker: dict[str, object] = field(default_factory=dict)
    deferred: Counts = field(default_factory=Counts)
    waits: Waits = field(default_factory=Waits)
    observers: list[StepObserver] = field(default_factory=list)
    workers: WorkerCounters = field(default_factory=WorkerCounters)
    iterator: Callable[[], Counted | None] = lambda: None

    def add_skipped(self, skipped: Iterable[SampleSkipped]) -> None:
        """Counts, keeps and logs samples that were left out or replaced."""
        for skip in skipped:
            if skip.replaced_by is None:
                self.skipped += 1
            else:
                self.substituted += 1
            if len(self.errors) < _KEPT_ERRORS:
                self.errors.append(skip.failure.text)
            lines = skip.failure.text.strip().splitlines()
            name = next((line for line in lines if line.startswith("Sample: ")), "a sample")
            action = "left out" if skip.replaced_by is None else f"replaced by {skip.replaced_by}"
            log.warning("%s was %s: %s", name, action, lines[-1])

    def snapshot(self, epochs: int, kept: Mapping[str, StoreStats]) -> LoaderStats:
        """Returns everything that was counted until now.

        Args:
            epochs: that were finished.
            kept: what is kept of files, by name.
        """
        workers, deferred = self.workers.copy(), Counts()
        deferred.add(self.deferred)
        counted = self.iterator()
        if counted is not None and (running := counted()) is not None:
            workers.add(running[0])
            deferred.add(running[1])
        stages = stage_stats(
            workers.part_seconds,
            workers.busy_seconds,
            workers.samples,
            workers.wanted,
            workers.user_code,
            workers.copy_seconds,
        )
        waits = self.waits.stats()
        return LoaderStats(
            wait_share=waits.share,
            waits=waits,
            capacity=total_capacity(stages),
            stages=stages,
            rank=rank_here(),
            epochs=epochs,
            batches=self.batches,
            samples=self.samples,
            skipped=self.skipped,
            substituted=self.substituted,
            errors=tuple(self.errors),
            workers=workers.workers,
            worker_restarts=workers.restarts,
            worker_seconds=workers.busy_seconds,
            pillow_samples=workers.pillow_samples,
            borrowed_samples=workers.borrowed_samples,
            read_bytes=workers.read_bytes,
            cache_hits=workers.cache_hits,
            in_flight=workers.in_flight,
            slots=workers.slots,
            shared_memory_bytes=workers.peak_bytes,
            copied_bytes=workers.copied_bytes,
            part_seconds=tuple(workers.part_seconds),
            gpu_worker=dict(self.gpu_worker),
            deferred_images=deferred.as_dict(),
            decoded_cache=kept.get("decoded_cache"),
            jpeg_index=kept.get("jpeg_index"),
        )


def rank_here() -> int:
    """Returns the rank of this process among those of its training, 0 where there is one."""
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0
