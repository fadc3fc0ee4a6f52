"""Counters of workers, added up over the iterators of a loader, for other threads to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from fusionloader.observe.statistics.snapshot import WorkerStats
from fusionloader.observe.statistics.totals import WorkerTotals
from fusionloader.system.shm import cache_counts
from fusionloader.transforms.executors.spent import Spent

Counted = Callable[[], WorkerTotals]
"""Returns what the workers of an iterator have counted, until they end and after it."""


@dataclass(slots=True)
class WorkerCounters:
    """What workers have counted, of all iterators that have ended, and of the one under way."""

    samples: int = 0
    restarts: int = 0
    borrowed_samples: int = 0
    peak_bytes: int = 0
    limit_bytes: int = 0
    busy_seconds: float = 0.0
    pillow_samples: int = 0
    copied_bytes: int = 0
    copy_seconds: float = 0.0
    read_bytes: int = 0
    cache: list[int] = field(default_factory=cache_counts.nothing)
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
        for name in ("in_flight", "wanted", "user_code"):
            setattr(self, name, getattr(totals, name))
        earlier = {(worker.kind, worker.number): worker for worker in self.workers}
        self.workers = tuple(
            worker.since(earlier.get((worker.kind, worker.number))) for worker in totals.workers
        )
        memory = totals.memory
        self.slots, self.peak_bytes = memory.slots, memory.peak_bytes
        self.limit_bytes = memory.limit_bytes
        self.copied_bytes += memory.copied_bytes
        self.copy_seconds += memory.copy_seconds
        self._add_cache(totals.cache)
        self.add_part_seconds(totals.part_seconds)

    def add_part_seconds(self, seconds: Sequence[float]) -> None:
        """Adds the time spent on each part of a plan."""
        pairs = zip_longest(self.part_seconds, seconds, fillvalue=0.0)
        self.part_seconds = [a + b for a, b in pairs]  # a changed plan may have more of them

    def _add_cache(self, counts: Sequence[int]) -> None:
        self.cache = [a + b for a, b in zip(self.cache, counts, strict=True)]

    def add_spent(self, samples: int, seconds: float, spent: Spent) -> None:
        """Adds what samples have cost that were made elsewhere than by workers of a manager."""
        self.samples += samples
        self.busy_seconds += seconds
        self.read_bytes += spent.read_bytes
        self._add_cache(spent.cache)
        self.add_part_seconds(spent.part_seconds)

    def round(self) -> None:
        """Rounds seconds to nanoseconds, which they are counted in.

        The last bits of a sum depend on the order in which iterators end: it could decrease.
        """
        self.busy_seconds = round(self.busy_seconds, 9)
        self.workers = tuple(
            replace(worker, busy_seconds=round(worker.busy_seconds, 9)) for worker in self.workers
        )

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
)


class AllWorkers:
    """Counters of the iterators that have ended, and of those under way.

    Any thread may read them while training goes on, and no counter ever decreases: an iterator
    moves from those under way to those that have ended by one assignment, when its workers count
    no more.
    """

    def __init__(self) -> None:
        self._counted: tuple[WorkerCounters, tuple[Counted, ...]] = (WorkerCounters(), ())

    @property
    def ended(self) -> WorkerCounters:
        """Counters of the iterators that have ended."""
        return self._counted[0]

    def begin(self, counted: Counted) -> None:
        """Reads the counters of an iterator from now on."""
        ended, under_way = self._counted
        self._counted = ended, (*under_way, counted)

    def end(self, counted: Counted) -> None:
        """Adds the counters of an iterator whose workers have ended for good."""
        ended, under_way = self._counted
        try:
            total = ended.copy()
            total.add(counted())
            ended = total
        finally:  # after an exception, too: ``counted`` refers to all that the iterator had
            self._counted = ended, tuple(each for each in under_way if each != counted)

    def total(self) -> WorkerCounters:
        """Returns all counters as they are now."""
        ended, under_way = self._counted
        total = ended.copy()
        for counted in under_way:
            total.add(counted())
        total.round()
        return total
