"""A timeline of a training that never ran: as long, and with as many workers, as one asks for."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

from fusionloader.observe.trace.timeline import (
    CACHED,
    READY,
    THRESHOLD,
    Copy,
    CounterValue,
    Instant,
    Meta,
    Span,
    Step,
    Timeline,
    Worker,
)

_MS = 1_000_000
_START = 1_000_000 * _MS
_UNIX = 1_750_000_000_000 * _MS
_BATCH, _TINY, _EPOCH = 256, 4, 250
_GROUP = 8  # tiny-batches of a launch
_THRESHOLD_EVERY, _RESTART_EVERY = 40, 400  # steps
_FILE_BYTES, _IMAGE_BYTES = 78_000, 602_112  # encoded, and as float32


def training_timeline(steps: int, workers: int, training_ms: float = 20.0) -> Timeline:
    """Returns a training of ``steps`` batches of 256 images, with CPU workers and a GPU worker.

    Files have log-normal sizes around 78 kB. Two mini-batches a worker are ahead of training at
    most, and training takes ``training_ms`` for a step.
    """
    training = _Training(workers, training_ms)
    for number in range(steps):
        training.step(number)
    return training.timeline()


class _Training:
    """What has happened until now."""

    def __init__(self, workers: int, training_ms: float) -> None:
        self._draw = random.Random(0)
        self._workers, self._training_ns = workers, int(training_ms * _MS)
        self._free = [(_START, number) for number in range(workers + 1)]
        self._ends: list[int] = []
        self._spans: list[Span] = []
        self._steps: list[Step] = []
        self._copies: list[Copy] = []
        self._instants: list[Instant] = []
        self._counters: list[CounterValue] = []

    def step(self, number: int) -> None:
        """Makes a mini-batch, and delivers it."""
        epoch, batch = divmod(number, _EPOCH)
        spans = list(self._mini_batch(number))
        self._spans += spans
        end = max(span.end_ns for span in spans)
        asked = _START
        if self._steps:
            pause = self._training_ns * self._draw.uniform(0.9, 1.1)
            asked = self._steps[-1].delivered_ns + int(pause)
        delivered = max(asked, end) + self._draw.randrange(_MS // 4, _MS)
        self._steps.append(Step(0, epoch, batch, _BATCH, asked, end, delivered))
        begin = min(max(end - 2 * _MS, asked), delivered)
        self._copies.append(Copy(0, epoch, batch, _BATCH * _IMAGE_BYTES, begin, delivered))
        self._count(number, max(0, asked - end), delivered)

    def _count(self, number: int, early_ns: int, at: int) -> None:
        self._counters.append(CounterValue(at, READY, early_ns // max(self._training_ns, 1)))
        self._counters.append(CounterValue(at, CACHED, min(number, _EPOCH) * _BATCH))
        if number % _THRESHOLD_EVERY == 0:
            threshold = self._draw.randrange(6)
            self._counters.append(CounterValue(at, THRESHOLD, threshold))
            self._instants.append(Instant(at, "threshold", f"threshold {threshold}"))
        if number % _RESTART_EVERY == _RESTART_EVERY - 1:
            self._instants.append(Instant(at, "restart", "worker 0 was killed by SIGKILL", 0))

    def _mini_batch(self, number: int) -> Iterator[Span]:
        """Yields its spans: who is free next claims, small files first and large ones last."""
        count = _BATCH // _TINY
        drawn = (self._draw.lognormvariate(0, 0.5) for _ in range(count))
        sizes = sorted(int(_FILE_BYTES * each) * _TINY for each in drawn)
        ahead = number - 2 * self._workers
        published = self._steps[ahead].delivered_ns if ahead >= 0 else _START
        low, high = 0, count
        while low < high:
            begin, worker = heapq.heappop(self._free)
            first, few = (low, 1) if worker < self._workers else (max(low, high - _GROUP), _GROUP)
            few = min(few, high - low)
            low, high = (low + 1, high) if worker < self._workers else (low, first)
            chosen = sizes[first : first + few]
            span = self._span(number, worker, first, chosen, max(begin, published))
            heapq.heappush(self._free, (span.end_ns + self._draw.randrange(_MS // 20), worker))
            yield span

    def _span(self, number: int, worker: int, first: int, sizes: list[int], begin: int) -> Span:
        nbytes, samples = sum(sizes), len(sizes) * _TINY
        parts: dict[str, int] = {}
        duration = 12 * _MS + int(nbytes * 1.5)
        if worker < self._workers:
            decode = int(nbytes * 8 * self._draw.lognormvariate(0, 0.15))
            parts = {"read_ns": nbytes * 5 // 2, "decode_ns": decode, "augment_ns": _MS // 2}
            duration = sum(parts.values()) + _MS // 20
        where = (worker, 5000 + worker, 0, *divmod(number, _EPOCH), first, len(sizes))
        return Span(*where, samples, nbytes, begin, begin + duration, **parts)

    def timeline(self) -> Timeline:
        """Returns all of it."""
        cpu = (Worker(number, "cpu") for number in range(self._workers))
        crew = (*cpu, Worker(self._workers, "gpu"))
        end = self._steps[-1].delivered_ns
        meta = Meta(4321, 0, _BATCH, _TINY, _START, end, _UNIX, crew)
        happened = self._copies, self._instants, self._counters
        return Timeline.in_order(meta, self._spans, self._steps, *happened)
