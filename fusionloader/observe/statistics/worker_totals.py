"""What workers have counted, of one iterator or of several, for other threads to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from fusionloader.observe.statistics.snapshot import SECONDS_OF_WORKERS, AnyWorkerKind, WorkerStats
from fusionloader.system.shm import cache_counts
from fusionloader.transforms.plan.parts import Spent

if TYPE_CHECKING:  # the counters are read where the native part is missing, too
    from fusionloader import _native


def _gauge(value: Any) -> Any:
    return field(default=value, metadata={"gauge": True})


@dataclass(slots=True)
class WorkerTotals:
    """Sums over workers, and gauges of the latest iterator.

    Fields that ``LoaderStats`` has, too, mean the same and come into it by their names.

    Attributes:
        made: samples that workers have made.
        cache_counts: samples by where they came from, as in ``system/shm/cache_counts.py``.
        images: counts of deferred images, as ``data/deferred/counts.py`` has them in words.
        copy_seconds: time of the device for copies.
        cpu_ns: processor time of workers' threads, in nanoseconds.
        run_delay_ns: time that these were ready to run while other threads had the cores.
        wanted: number of CPU workers that there are to be.
        user_code: whether workers run any.
    """

    made: int = 0
    worker_restarts: int = 0
    worker_seconds: float = 0.0
    cpu_ns: int = 0
    run_delay_ns: int = 0
    pillow_samples: int = 0
    borrowed_samples: int = 0
    read_bytes: int = 0
    files_opened: int = 0
    files_reused: int = 0
    copied_bytes: int = 0
    copy_seconds: float = 0.0
    cache_counts: list[int] = field(default_factory=cache_counts.nothing)
    images: list[int] = field(default_factory=list)
    part_seconds: list[float] = field(default_factory=list)
    in_flight: int = _gauge(0)
    slots: int = _gauge(0)
    shared_memory_bytes: int = _gauge(0)
    shared_memory_limit_bytes: int = _gauge(0)
    wanted: int = _gauge(1)
    user_code: bool = _gauge(True)
    workers: tuple[WorkerStats, ...] = ()

    def __add__(self, later: WorkerTotals) -> WorkerTotals:
        """Returns the sums of both with the gauges of the ``later`` ones."""
        earlier = {(worker.kind, worker.number): worker for worker in self.workers}
        workers = (each.since(earlier.get((each.kind, each.number))) for each in later.workers)
        return self._with(later, 1, tuple(workers))

    def __sub__(self, before: WorkerTotals) -> WorkerTotals:
        """Returns what was counted since ``before``, in records that were in use already."""
        earlier = {worker.number: worker for worker in before.workers}
        workers = (_subtract(each, earlier.get(each.number)) for each in self.workers)
        return before._with(self, -1, tuple(workers))

    def _with(
        self, later: WorkerTotals, sign: int, workers: tuple[WorkerStats, ...]
    ) -> WorkerTotals:
        """Returns ``later`` with these sums added to its own, or subtracted, and ``workers``."""
        sums: dict[str, Any] = {}
        for each in _SUMS:
            mine, theirs = getattr(self, each), getattr(later, each)
            sums[each] = (
                _add(theirs, mine, sign) if isinstance(mine, list) else theirs + sign * mine
            )
        return replace(later, workers=workers, **sums)

    def add_part_seconds(self, seconds: Sequence[float]) -> None:
        """Adds the time spent on each part of a plan."""
        self.part_seconds = _add(self.part_seconds, seconds)

    def add_spent(self, samples: int, seconds: float, spent: Spent) -> None:
        """Adds what samples have cost that were made elsewhere than by workers of a manager."""
        self.made += samples
        self.worker_seconds += seconds
        self.read_bytes += spent.read_bytes
        self.cache_counts = _add(self.cache_counts, spent.cache)
        self.add_part_seconds(spent.part_seconds)

    def rounded(self) -> WorkerTotals:
        """Returns the same with seconds rounded to nanoseconds, which they are counted in.

        The last bits of a sum depend on the order in which iterators end: it could decrease.
        """
        workers = tuple(
            replace(each, **{name: round(getattr(each, name), 9) for name in SECONDS_OF_WORKERS})
            for each in self.workers
        )
        return replace(self, worker_seconds=round(self.worker_seconds, 9), workers=workers)


_SUMS = tuple(
    each.name
    for each in dataclasses.fields(WorkerTotals)
    if "gauge" not in each.metadata and each.name != "workers"
)


def _add(some: Sequence[Any], others: Sequence[Any], sign: int = 1) -> list[Any]:
    """Returns sums by place; a changed plan may have more parts."""
    return [a + sign * b for a, b in zip_longest(some, others, fillvalue=0)]


def _subtract(now: WorkerStats, before: WorkerStats | None) -> WorkerStats:
    if before is None:
        return now
    names = ("samples", *SECONDS_OF_WORKERS)
    counted = {name: getattr(now, name) - getattr(before, name) for name in names}
    return replace(now, busy_share=max(now.busy_share - before.busy_share, 0.0), **counted)


def sum_records(
    records: Sequence[_native.WorkerSnapshot], workers: Sequence[WorkerStats], **others: Any
) -> WorkerTotals:
    """Returns the sums over the records of a control block, with ``others`` beside them."""
    columns = zip(*(record.counts for record in records), strict=True)
    sums = dict(zip(records[0].names(), map(sum, columns), strict=True))
    named: dict[str, Any] = {name: sums[name] for name in _SUMS if name in sums}
    parts = zip_longest(*(record.part_seconds for record in records), fillvalue=0.0)
    return WorkerTotals(
        made=sums["samples"],
        worker_seconds=sums["busy_ns"] / 1e9,
        borrowed_samples=sum(each.samples for each in workers if each.kind == "borrowed"),
        cache_counts=[sums[f"cache_{name}"] for name in cache_counts.NAMES],
        images=list(map(sum, zip(*(record.images for record in records), strict=True))),
        part_seconds=[sum(part) for part in parts],
        workers=tuple(workers),
        **named,
        **others,
    )


def worker_stats(
    number: int, record: _native.WorkerSnapshot, kind: AnyWorkerKind, elapsed: float, restarts: int
) -> WorkerStats:
    """Returns what one worker has counted, ``elapsed`` seconds after the start."""
    return WorkerStats(
        number,
        record.pid,
        kind,
        record.samples,
        record.busy_seconds,
        record.busy_seconds / elapsed,
        restarts,
        record.cpu_seconds,
        record.run_delay_seconds,
    )


Counted = Callable[[], WorkerTotals]
"""Returns what the workers of an iterator have counted, until they end and after it."""


class AllWorkers:
    """Counters of the iterators that have ended, and of those under way.

    Any thread may read them while training goes on, and no counter ever decreases: an iterator
    moves from those under way to those that have ended by one assignment, when its workers count
    no more.
    """

    def __init__(self) -> None:
        self._counted: tuple[WorkerTotals, tuple[Counted, ...]] = (WorkerTotals(), ())

    @property
    def ended(self) -> WorkerTotals:
        """Counters of the iterators that have ended."""
        return self._counted[0]

    def begin(self, counted: Counted) -> None:
        """Reads the counters of an iterator from now on."""
        ended, under_way = self._counted
        self._counted = ended, (*under_way, counted)

    def end(self, counted: Counted) -> None:
        """Adds the counters of an iterator whose workers have ended for good."""
        added = WorkerTotals()
        try:
            added = counted()
        finally:  # after an exception, too: ``counted`` refers to all that the iterator had
            ended, under_way = self._counted  # another iterator may have ended meanwhile
            self._counted = ended + added, tuple(each for each in under_way if each != counted)

    def total(self) -> WorkerTotals:
        """Returns all counters as they are now."""
        ended, under_way = self._counted
        return sum((counted() for counted in under_way), ended).rounded()
