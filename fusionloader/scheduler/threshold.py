"""Task-affinity-aware scheduling (FusionFlow §5.2): which tiny-batches only the GPU worker takes.

CPU workers take tiny-batches from the small end of a mini-batch, the GPU worker from the large end.
The last ``threshold`` tiny-batches are reserved for the GPU worker, even when CPU workers are free.
The threshold must count as 0 while no GPU worker runs, since no other worker takes them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import Enum

from fusionloader.scheduler.changes import RateWatch

# The search ends when this many mini-batches in a row had one of two neighbouring thresholds: four
# reversals, which noise far from the balance seldom causes.
_OSCILLATION = 6
# The search ends at the latest after a mini-batch for each possible threshold, and this many more.
_PATIENCE = 16


class Side(Enum):
    """The two kinds of workers that share a mini-batch."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class MiniBatchDone:
    """Measurements of a mini-batch, made when its last tiny-batch is complete.

    ``threshold`` is the value at the first claim. ``cpu_seconds`` and ``gpu_seconds`` are the times
    from that claim to the last completion of each side; ``None`` if the side completed nothing. The
    rates are samples per second of busy time of one worker; ``None`` where not measured.
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
        """The side that finished last; ``None`` if both finished at once."""
        cpu = -1.0 if self.cpu_seconds is None else self.cpu_seconds
        gpu = -1.0 if self.gpu_seconds is None else self.gpu_seconds
        if cpu == gpu:
            return None
        return Side.CPU if cpu > gpu else Side.GPU


class ThresholdSearch:
    """Moves the threshold by one per mini-batch, to relieve the side that finished last.

    The search settles when the threshold oscillates between two neighbours, on the one with the
    shorter makespan. It starts again from the current threshold when the number of CPU workers or
    the rate of either side changes.

    Attributes:
        threshold: number of last tiny-batches that only the GPU worker may take.
        settled: whether the search is over.
        restarts: number of times that the search has started again.
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
        if self._changed(done):
            self._restart()
        # A mini-batch cannot be compared if it is smaller than the one before, as at the end of an
        # epoch, or if it began with another threshold.
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
        if not self.settled:  # each threshold gives the sides other sizes, and thus other rates
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
