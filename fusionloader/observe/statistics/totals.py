"""What the workers of one iterator have counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionloader.observe.statistics.snapshot import WorkerStats


@dataclass(frozen=True, slots=True)
class MemoryTotals:
    """Counters of an iterator's mini-batches.

    Attributes:
        slots: for batches.
        peak_bytes: that these took.
        limit_bytes: that mini-batches in flight may take, 0 while their size is unknown.
        copied_bytes: to a device.
        copy_seconds: of the device's time for that.
    """

    slots: int
    peak_bytes: int
    limit_bytes: int
    copied_bytes: int
    copy_seconds: float


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """Counters of an iterator's workers until now; see ``LoaderStats`` for what they mean.

    Attributes:
        samples: that they have made.
        wanted: CPU workers that there are to be.
        user_code: whether they run any.
    """

    samples: int
    restarts: int
    borrowed_samples: int
    memory: MemoryTotals
    busy_seconds: float
    pillow_samples: int
    read_bytes: int
    cache: Sequence[int]
    in_flight: int
    wanted: int
    user_code: bool
    part_seconds: Sequence[float]
    workers: tuple[WorkerStats, ...]
