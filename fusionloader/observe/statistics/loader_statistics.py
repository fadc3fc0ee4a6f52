"""The counters behind ``FusionLoader.stats()``, which all iterators of a loader add to."""

from __future__ import annotations

import copy
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
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
from fusionloader.observe.statistics.waits import StepObserver, WaitClock, Waits
from fusionloader.observe.statistics.worker_totals import AllWorkers, WorkerTotals
from fusionloader.system.shm import cache_counts
from fusionloader.workers.messages import SampleSkipped

log = logging.getLogger("fusionloader.loader")

# Lines of throughput and waiting, at INFO, for unattended runs.
progress_log = logging.getLogger("fusionloader.progress")
_SECONDS_PER_LINE = 10.0  # at least

_KEPT_ERRORS = 100


@dataclass(slots=True)
class Statistics:
    """Counters since the loader was made; seconds are wall time of the training process.

    Attributes:
        deferred: counts of deferred images that workers have no words of, and of this process.
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
    # At the last line of progress: time, samples, seconds of training on them, seconds waited.
    _logged: tuple[float, int, float, float] = (-math.inf, 0, 0.0, 0.0)

    @property
    def workers(self) -> WorkerTotals:
        """Counters of workers that have ended, and of all else that makes samples."""
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

    def clock(self, dataset: object) -> WaitClock:
        """Returns what measures the steps of an iterator over ``dataset``."""
        log_progress = partial(self.log_progress, dataset)
        return WaitClock(self.waits, self.observers, log_progress)

    def log_progress(self, dataset: object) -> None:
        """Logs throughput and waiting since the last line, unless that was written just now."""
        now, (before, samples, total, waited) = time.monotonic(), self._logged
        if not progress_log.isEnabledFor(logging.INFO) or now - before < _SECONDS_PER_LINE:
            return
        _, step_seconds, step_waits = self.waits.sums()
        first_waits = self.waits.first_seconds
        self._logged = now, self.samples, step_seconds + first_waits, step_waits + first_waits
        seconds = self._logged[2] - total
        progress_log.info(
            "%s, batch %d: %s samples/s, training waits %.1f%% of its time",
            describe_samples(dataset),
            self.batches,
            f"{(self.samples - samples) / seconds:,.0f}",
            100 * (self._logged[3] - waited) / seconds,
        )

    def epoch_ended(self) -> None:
        """Notes what the cache has saved until here."""
        counts = self.all_workers.total().cache_counts
        self._cache_of_epoch = [
            now - before for now, before in zip(counts, self._cache_before, strict=True)
        ]
        self._cache_before = counts

    def images(self) -> Counts:
        """Returns what was counted of deferred images until now, to any thread."""
        counted = copy.copy(self.deferred)
        counted.add_words(self.all_workers.total().images)
        return counted

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
            epochs: number of finished epochs.
            kept: stores of files and indexes, by name.
            shared: statistics of preparation shared with other jobs.
            remote: statistics of remote workers.
            stream: statistics of what was read from URLs.
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
            "deferred_images": self.images().as_dict(),
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


def describe_samples(dataset: Any) -> str:
    """Returns a dataset's class and length: ``ImageFolder (1,281,167 samples)``."""
    name = type(dataset).__name__
    try:
        return f"{name} ({len(dataset):,} samples)"
    except Exception:  # of user code, and streams have none
        return name


def rank_here() -> int:
    """Returns the rank of this process among those of its training, 0 where there is one."""
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0
