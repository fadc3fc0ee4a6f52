"""Task-affinity-aware scheduling (FusionFlow §5.2): how much of a mini-batch is the GPU worker's.

CPU workers take tiny-batches from the small end, the GPU worker from the large end. The last
``threshold`` ones are left to the GPU worker even when CPU workers are free. The
threshold must count as 0 while no GPU worker is at work: no other worker takes them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import Enum

from fusionloader.scheduler.changes import RateWatch

# The search ends when this many mini-batches in a row were spent on two neighbours: four reversals,
# which noise far from the balance seldom makes.
_OSCILLATION = 6
# It ends at the latest after the way from one end to the other and this.
_PATIENCE = 16


class Side(Enum):
    """Who works on a mini-batch."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class MiniBatchDone:
    """What is known of a mini-batch when its last tiny-batch is complete.

    ``threshold`` is the one in force at the first claim. ``cpu_seconds`` and ``gpu_seconds`` tell
    when each side finished its last tiny-batch, counted from that claim; ``None``: it did none. The
    rates are samples per second of work of one worker of a side, ``None`` where not measured.
    """

    tiny_batches: int
    threshold: int
    cpu_workers: int
    cpu_seconds: float | None
    gpu_seconds: float | None
    cpu_rate: float | None = None
    gpu_rate: float | None = None

    @property
    def makespan(self) -> float:
        """Seconds from the first claim to the last completion."""
        return max(self.cpu_seconds or 0.0, self.gpu_seconds or 0.0)

    @property
    def busy_last(self) -> Side | None:
        """The side that others waited for; ``None`` if both ended at once."""
        cpu = -1.0 if self.cpu_seconds is None else self.cpu_seconds
        gpu = -1.0 if self.gpu_seconds is None else self.gpu_seconds
        if cpu == gpu:
            return None
        return Side.CPU if cpu > gpu else Side.GPU


class ThresholdSearch:
    """Moves the threshold by one per mini-batch, away from the side that was busy last.

    It settles when it oscillates between neighbours, on the one with the shorter makespan, and
    searches again, from where it is, when the number of CPU workers changes or the rate of either
    side does.

    Attributes:
        threshold: the number of last tiny-batches that only the GPU worker may take.
        settled: whether the search is over.
        restarts: how often it has begun again.
    """

    def __init__(self) -> None:
        self.threshold = 0
        self.settled = False
        self.restarts = 0
        self._workers: int | None = None
        self._tiny_batches = 0
        self._path: list[int] = []
        self._makespans: dict[int, list[float]] = {}
        self._rates = {side: RateWatch() for side in Side}

    def finished(self, done: MiniBatchDone) -> None:
        """Learns from a mini-batch."""
        if self._changed(done):
            self._restart()
        # A mini-batch smaller than the one before, as at the end of an epoch, is no measure for the
        # others; after one that ran partly under another threshold there is nothing to compare.
        comparable = done.tiny_batches >= self._tiny_batches and done.threshold == self.threshold
        self._tiny_batches = done.tiny_batches
        self.threshold = min(self.threshold, done.tiny_batches)
        if not comparable or self.settled or done.tiny_batches == 0:
            return
        self._path.append(self.threshold)
        share = done.makespan / done.tiny_batches
        self._makespans.setdefault(self.threshold, []).append(share)
        self._move(done)
        self._settle_if_done()

    def _changed(self, done: MiniBatchDone) -> bool:
        workers_changed = self._workers not in (None, done.cpu_workers)
        self._workers = done.cpu_workers
        if not self.settled:  # while it searches, sizes and with them rates shift between the sides
            return workers_changed
        rates = {Side.CPU: done.cpu_rate, Side.GPU: done.gpu_rate}
        moved = [self._rates[side].moved(rates[side]) for side in Side]
        return workers_changed or any(moved)

    def _restart(self) -> None:
        self.restarts += 1
        self.settled = False
        self._path.clear()
        self._makespans.clear()

    def _move(self, done: MiniBatchDone) -> None:
        if done.busy_last is Side.CPU:
            self.threshold = min(self.threshold + 1, done.tiny_batches)
        elif done.busy_last is Side.GPU:
            self.threshold = max(self.threshold - 1, 0)

    def _settle_if_done(self) -> None:
        last = set(self._path[-_OSCILLATION:])
        if len(self._path) >= _OSCILLATION and max(last) - min(last) <= 1:
            self._settle(last)
        elif len(self._path) >= self._tiny_batches + _PATIENCE:
            often = [t for t, spans in self._makespans.items() if len(spans) > 1]
            self._settle(set(often or self._makespans))

    def _settle(self, candidates: set[int]) -> None:
        spans = self._makespans
        self.threshold = min(sorted(candidates), key=lambda t: statistics.median(spans[t]))
        self.settled = True
        for watch in self._rates.values():
            watch.forget()
