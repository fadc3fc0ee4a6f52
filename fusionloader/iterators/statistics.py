"""What ``FusionLoader.stats()`` reports of batches, samples and workers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import TYPE_CHECKING

from fusionloader.deferred.counts import Counts
from fusionloader.workers.messages import SampleSkipped

if TYPE_CHECKING:  # this part works where the native part is missing
    from fusionloader.manager.local_manager import WorkerTotals

log = logging.getLogger("fusionloader.loader")

_KEPT_ERRORS = 100


@dataclass(slots=True)
class Statistics:
    """Counters since the loader was made; seconds are wall time of the training process."""

    batches: int = 0
    samples: int = 0
    wait_seconds: float = 0.0
    skipped: int = 0
    substituted: int = 0
    errors: list[str] = field(default_factory=list)
    worker_restarts: int = 0
    worker_seconds: float = 0.0
    pillow_samples: int = 0
    shared_memory_bytes: int = 0
    part_seconds: list[float] = field(default_factory=list)
    gpu_worker: dict[str, object] = field(default_factory=dict)
    borrowed_samples: int = 0
    copied_bytes: int = 0
    deferred: Counts = field(default_factory=Counts)

    def add_part_seconds(self, seconds: Sequence[float]) -> None:
        """Adds the time spent on each part of a plan."""
        pairs = zip_longest(self.part_seconds, seconds, fillvalue=0.0)
        self.part_seconds = [a + b for a, b in pairs]  # a changed plan may have more of them

    def add_workers(self, totals: WorkerTotals) -> None:
        """Adds what the workers of an iterator have counted, when they are about to end."""
        self.worker_restarts += totals.restarts
        self.borrowed_samples += totals.borrowed_samples
        self.copied_bytes += totals.copied_bytes
        self.shared_memory_bytes = totals.peak_bytes
        self.worker_seconds += totals.busy_seconds
        self.pillow_samples += totals.pillow_samples
        self.add_part_seconds(totals.part_seconds)

    def as_dict(self) -> dict[str, object]:
        """Returns the counters as plain values."""
        counted = {each.name: getattr(self, each.name) for each in fields(self)}
        counted["deferred_images"] = counted.pop("deferred").as_dict()
        return copy.deepcopy(counted)

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
