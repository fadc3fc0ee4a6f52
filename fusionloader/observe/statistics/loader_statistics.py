"""The counters behind ``FusionLoader.stats()``, which all iterators of a loader add to."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fusionloader.cache.store_stats import StoreStats
from fusionloader.data.deferred.counts import Counts
from fusionloader.data.read_ahead.counters import StreamStats
from fusionloader.observe.statistics.cache_stats import cache_stats
from fusionloader.observe.statistics.processor_use import ProcessorUse
from fusionloader.observe.statistics.remote_stats import RemoteStats
from fusionloader.observe.statistics.shared_prep import SharedPrepStats
from fusionloader.observe.statistics.snapshot import LoaderStats
from fusionloader.observe.statistics.stages import stage_stats, total_capacity
from fusionloader.observe.statistics.waits import StepObserver, Waits
from fusionloader.observe.statistics.worker_totals import AllWorkers, WorkerTotals
from fusionloader.system.shm import cache_counts
from fusionloader.workers.messages import SampleSkipped

log = logging.getLogger("fusionloader.loader")

_KEPT_ERRORS = 100


@dataclass(slots=True)
class Statistics:
    """Counters since the loader was made; seconds are wall time of the training process.

    Attributes:
        observers: are told of the steps of training.
        all_workers: the counters of the workers of all iterators.
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
    _cache_before: list[int] = field(default_factory=cache_counts.nothing)
    _cache_of_epoch: list[int] = field(default_factory=cache_counts.nothing)
    all_workers: AllWorkers = field(default_factory=AllWorkers)

    @property
    def workers(self) -> WorkerTotals:
        """Counters of workers that have ended, and of whoever else makes samples."""
        return self.all_workers.ended

    def add_skipped(self, skipped: Iterable[SampleSkipped]) -> None:
        """Counts, keeps and logs samples that were left out or replaced."""
        for skip in skipped:
            if skip.replaced_by is None:
                self.skipped += 1
            else:
                self.substituted += 1
            if len(self.errors) < _KEPT_ERRORS:
                self.errors.append(skip.failure.text)
            lines = skip.failure.text.splitlines()
            name = next((line for line in lines if line.startswith("Sample: ")), "a sample")
            action = "left out" if skip.replaced_by is None else f"replaced by {skip.replaced_by}"
            log.warning("%s was %s: %s", name, action, skip.failure.line)

    def epoch_ended(self) -> None:
        """Notes what the cache has saved until here."""
        counts = self.all_workers.total().cache_counts
        self._cache_of_epoch = [
            now - before for now, before in zip(counts, self._cache_before, strict=True)
        ]
        self._cache_before = counts

    def processors(self) -> ProcessorUse:
        """Returns what workers and training got of the processors, to any thread."""
        return self._processors(self.all_workers.total())

    def _processors(self, workers: WorkerTotals) -> ProcessorUse:
        cpu, delay = workers.cpu_ns / 1e9, workers.run_delay_ns / 1e9
        return self.waits.processors.use(workers.worker_seconds, cpu, delay)

    def snapshot(
        self,
        epochs: int,
        kept: Mapping[str, StoreStats],
        shared: SharedPrepStats | None = None,
        remote: RemoteStats | None = None,
        stream: StreamStats | None = None,
    ) -> LoaderStats:
        """Returns everything that was counted until now, to any thread.

        Args:
            epochs: that were finished.
            kept: what is kept of files, by name.
            shared: what other jobs have to do with it.
            remote: what other machines have.
            stream: what was read of URLs.
        """
        workers = self.all_workers.total()
        stages = stage_stats(
            workers.part_seconds,
            workers.worker_seconds,
            workers.made,
            workers.wanted,
            workers.user_code,
            workers.copy_seconds,
        )
        waits = self.waits.stats()
        counted: dict[str, Any] = {
            name: _frozen(getattr(source, name))
            for source, names in ((self, _OWN), (workers, _OF_WORKERS))
            for name in names
        }
        counted |= {
            "wait_share": waits.share,
            "waits": waits,
            "capacity": total_capacity(stages),
            "stages": stages,
            "processors": self._processors(workers),
            "rank": rank_here(),
            "epochs": epochs,
            "cache_hits": sum(workers.cache_counts[place] for place in cache_counts.HITS),
            "cache": cache_stats(workers.cache_counts, self._cache_of_epoch, kept),
            "deferred_images": self.deferred.as_dict(),
            "decoded_cache": kept.get("decoded_cache"),
            "jpeg_index": kept.get("jpeg_index"),
            "shared_prep": shared,
            "remote": remote,
            "stream": stream,
        }
        return LoaderStats(**counted)


_NAMES = {each.name for each in fields(LoaderStats)}
_OWN = _NAMES & {each.name for each in fields(Statistics)}
_OF_WORKERS = _NAMES & {each.name for each in fields(WorkerTotals)}


def _frozen(value: object) -> object:
    """Returns a value that no longer changes."""
    if isinstance(value, dict):
        return dict(value)
    return tuple(value) if isinstance(value, list) else value


def rank_here() -> int:
    """Returns the rank of this process among those of its training, 0 where there is one."""
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0
