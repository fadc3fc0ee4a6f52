"""What workers did: how busy each was, what a sample cost, and what each stage could make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from fusionloader.cli.drawn_report.analysis.busy_time import BusyTime
from fusionloader.cli.drawn_report.analysis.waits import TraceWaits
from fusionloader.observe.statistics.stages import StageStats, make_stages, total_capacity
from fusionloader.observe.trace.timeline import PARTS, Span, Timeline, Worker, WorkerKind

KINDS: dict[WorkerKind, str] = {
    "cpu": "CPU workers",
    "borrowed": "borrowed workers",
    "remote": "remote workers",
    "gpu": "GPU worker",
}
OTHER = "other"
STAGES = (*PARTS, OTHER)


@dataclass(frozen=True, slots=True)
class WorkerWork:
    """One worker: its samples, encoded bytes, busy time, and how often it was replaced."""

    worker: Worker
    samples: int
    nbytes: int
    busy: BusyTime
    busy_share: float
    restarts: int


@dataclass(frozen=True, slots=True)
class KindWork:
    """All workers of a kind.

    Attributes:
        kind: kind of worker.
        workers: how many.
        stages: the time of a sample divided; capacities are at so many workers.
    """

    kind: WorkerKind
    workers: int
    stages: tuple[StageStats, ...]

    @property
    def name(self) -> str:
        """In words."""
        return KINDS[self.kind]

    @property
    def capacity(self) -> float:
        """Samples per second that they make when they are always busy."""
        return total_capacity(self.stages) or 0.0

    @property
    def seconds_per_sample(self) -> float:
        """Of one worker."""
        return sum(stage.seconds / stage.samples for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Work:
    """What all workers of a timeline did; kinds that made no sample are left out."""

    begin_ns: int
    end_ns: int
    workers: tuple[WorkerWork, ...]
    kinds: tuple[KindWork, ...]

    @property
    def seconds(self) -> float:
        """From the first thing seen to the last."""
        return (self.end_ns - self.begin_ns) / 1e9

    @property
    def capacity(self) -> float:
        """Samples per second that all workers make when they are always busy."""
        return sum(kind.capacity for kind in self.kinds)

    def kind(self, kind: WorkerKind) -> KindWork | None:
        """Returns the workers of a kind, if they made any sample."""
        return next((each for each in self.kinds if each.kind == kind), None)

    def busy_share_of_waits(self, waits: TraceWaits) -> float | None:
        """Returns how much of the CPU workers' time was busy while training waited for workers."""
        seen = [each for each in self.workers if each.worker.kind == "cpu"]
        begins = np.array([step.asked_ns for step in waits.steps])[waits.counted]
        ends = begins + waits.for_workers[waits.counted] * 1e9
        waited = float((ends - begins).sum())
        if not seen or waited <= 0:
            return None
        busy = sum(float(each.busy.between(begins, ends).sum()) for each in seen)
        return busy / (waited * len(seen))


def work_of(timeline: Timeline) -> Work:
    """Returns what the workers of a timeline did."""
    begin, end = extent(timeline)
    by_worker: dict[int, list[Span]] = {}
    for span in timeline.spans:
        by_worker.setdefault(span.worker, []).append(span)
    workers = []
    known = {worker.number: worker for worker in timeline.meta.workers}
    for number in sorted({*known, *by_worker}):
        worker = known.get(number, Worker(number, "cpu"))
        spans = by_worker.get(number, [])
        if spans or worker.kind == "cpu":  # the others may be slots that no worker used
            workers.append(_worker_work(worker, spans, begin, end, timeline))
    kinds = []
    for kind in KINDS:
        numbers = {each.worker.number for each in workers if each.worker.kind == kind}
        found = _kind_work(kind, len(numbers), [s for n in numbers for s in by_worker.get(n, [])])
        kinds += [found] if found.stages else []
    return Work(begin, end, tuple(workers), tuple(kinds))


def extent(timeline: Timeline) -> tuple[int, int]:
    """Returns when the first thing of a timeline began, and the last one ended.

    A trace is often asked for long before its first epoch.
    """
    asked = [s.asked_ns if s.began_ns is None else s.began_ns for s in timeline.steps]
    begins = asked + [s.begin_ns for s in timeline.spans]
    ends = [step.delivered_ns for step in timeline.steps] + [s.end_ns for s in timeline.spans]
    begin = min(begins, default=timeline.meta.begin_ns)
    return begin, max([begin + 1, *ends])


def _worker_work(
    worker: Worker, spans: Sequence[Span], begin: int, end: int, timeline: Timeline
) -> WorkerWork:
    busy = BusyTime((span.begin_ns, span.end_ns) for span in spans)
    return WorkerWork(
        worker,
        sum(span.samples for span in spans),
        sum(span.nbytes for span in spans),
        busy,
        float(busy.between(begin, end)) / (end - begin),
        sum(each.kind == "restart" and each.worker == worker.number for each in timeline.instants),
    )


def _kind_work(kind: WorkerKind, workers: int, spans: Sequence[Span]) -> KindWork:
    samples = sum(span.samples for span in spans)
    spent = {part: sum(map(attrgetter(f"{part}_ns"), spans)) for part in PARTS}
    spent[OTHER] = sum(span.duration_ns for span in spans) - sum(spent.values())
    seconds = {name: nanoseconds / 1e9 for name, nanoseconds in spent.items()}
    return KindWork(kind, workers, make_stages(seconds, samples, workers))
