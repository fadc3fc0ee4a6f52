"""What a trace collects in the training process while it is on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from fusionloader.observe.statistics.processor_use import ProcessorUse
from fusionloader.observe.trace.timeline import (
    CACHED,
    INDEXED,
    Copy,
    CounterValue,
    Instant,
    InstantKind,
    Meta,
    Span,
    Step,
    Timeline,
    Worker,
)

_POLL_NS = 100_000_000


class RecordStore(Protocol):
    """What a loader keeps of its files, as ``FusionLoader.stats()`` has it."""

    @property
    def images(self) -> int:
        """How many are in it."""


KeptStats = Callable[[], Mapping[str, RecordStore]]
"""Returns the stores of a loader, by name."""


@dataclass(frozen=True, slots=True)
class Traced:
    """The loader that is traced: its rank, its batches, what it keeps of its files, its cores."""

    rank: int
    batch_size: int | None
    tiny_batch_size: int
    kept: KeptStats
    processors: Callable[[], ProcessorUse]


class Recorder:
    """Spans, steps and all else of one trace, in the order in which they become known.

    Iterators in several threads may add to it: each addition is one append.
    """

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._begin_ns = time.monotonic_ns()
        self._processors = traced.processors()
        self._unix_ns = unix_offset()
        self._iterators = 0
        self._polled_ns = 0
        self._values: dict[str, int] = {}
        self._workers: dict[int, Worker] = {}
        self.spans: list[Span] = []
        self.steps: list[Step] = []
        self.copies: list[Copy] = []
        self.instants: list[Instant] = []
        self.counters: list[CounterValue] = []
        self.notes: list[str] = []
        self.steps_only = ""
        self.lost = 0

    def new_iterator(self) -> int:
        """Returns a number for an iterator that is seen for the first time."""
        self._iterators += 1
        return self._iterators - 1

    def knows(self, workers: Iterable[Worker]) -> None:
        """Adds workers that are there; those that are known stay as they are."""
        for worker in workers:
            self._workers.setdefault(worker.number, worker)

    def instant(self, kind: InstantKind, text: str, worker: int | None = None) -> None:
        """Adds something that has just happened."""
        self.instants.append(Instant(time.monotonic_ns(), kind, text, worker))

    def count(self, name: str, value: int) -> bool:
        """Adds a counter's value if it has changed; returns whether there was another before."""
        before = self._values.get(name)
        if before != value:
            self._values[name] = value
            self.counters.append(CounterValue(time.monotonic_ns(), name, value))
        return before not in (None, value)

    def poll(self) -> None:
        """Looks at what the loader keeps of its files, at most every 0.1 s."""
        now = time.monotonic_ns()
        if now - self._polled_ns < _POLL_NS:
            return
        self._polled_ns = now
        kept = self._traced.kept()
        for store, name in (("decoded_cache", CACHED), ("jpeg_index", INDEXED)):
            if store in kept:
                self.count(name, kept[store].images)

    def timeline(self) -> Timeline:
        """Returns everything recorded, in order."""
        meta = Meta(
            pid=os.getpid(),
            rank=self._traced.rank,
            batch_size=self._traced.batch_size,
            tiny_batch_size=self._traced.tiny_batch_size,
            begin_ns=self._begin_ns,
            end_ns=time.monotonic_ns(),
            unix_ns=self._unix_ns,
            workers=tuple(sorted(self._workers.values(), key=attrgetter("number"))),
            lost=self.lost,
            steps_only=self.steps_only,
            notes=tuple(self.notes),
            processors=self._traced.processors().since(self._processors),
        )
        found = self.spans, self.steps, self.copies, self.instants, self.counters
        return Timeline.in_order(meta, *found)


def unix_offset() -> int:
    """Returns Unix time minus ``CLOCK_MONOTONIC``, in nanoseconds.

    Of several tries that one is taken in which the least time passed between the clocks.
    """
    tries = []
    for _ in range(5):
        before, unix, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        tries.append((after - before, unix - (before + after) // 2))
    return min(tries)[1]
