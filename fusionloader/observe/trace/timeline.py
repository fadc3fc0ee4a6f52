"""A timeline: what the workers of a loader and its training process did, and when.

All times are nanoseconds of ``CLOCK_MONOTONIC``, which the processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from fusionloader.observe.statistics.processor_use import ProcessorUse

WorkerKind = Literal["cpu", "gpu", "borrowed", "remote"]
InstantKind = Literal["threshold", "gpu_mode", "shared", "borrowed", "restart", "workers"]

READY = "ready mini-batches"
THRESHOLD = "threshold"
CACHED = "images in the decoded cache"
INDEXED = "images in the JPEG index"

PARTS = ("read", "decode", "augment", "python", "write")
"""What a worker's time is spent on, in the order in which a sample comes by."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of the workers; ``number`` stays when its process is replaced."""

    number: int
    kind: WorkerKind

    @property
    def name(self) -> str:
        """What its track is called."""
        if self.kind == "gpu":
            return "GPU worker"
        whose = "" if self.kind == "cpu" else f"{self.kind} "
        return f"{whose}worker {self.number}"


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tiny-batches of one mini-batch that a worker did in one go.

    Native workers do one at a time; Python workers several while samples are cheap, and a GPU
    worker a group.

    Attributes:
        worker: the worker's number.
        pid: id of the worker's process at that time.
        iterator: which of the iterators seen by the trace, counted from 0.
        epoch: epoch of the mini-batch.
        batch: the mini-batch's number in its epoch.
        first: number of the first tiny-batch in the mini-batch; small files come first.
        count: how many tiny-batches.
        samples: how many samples.
        nbytes: encoded bytes that were read; 0 where they were kept, or are read by user code.
        begin_ns: when the worker began.
        end_ns: when the last tiny-batch was finished.
        read_ns: time for reading files.
        decode_ns: time for decoding, windows, resizes, flips and conversion, which run together.
        augment_ns: time for the other operations of a compiled plan.
        python_ns: time for user code, with the interpreter's own work around it.
        write_ns: time for writing samples of user code into the batch.
    """

    worker: int
    pid: int
    iterator: int
    epoch: int
    batch: int
    first: int
    count: int
    samples: int
    nbytes: int
    begin_ns: int
    end_ns: int
    read_ns: int = 0
    decode_ns: int = 0
    augment_ns: int = 0
    python_ns: int = 0
    write_ns: int = 0

    @property
    def duration_ns(self) -> int:
        """From begin to end."""
        return self.end_ns - self.begin_ns

    @property
    def parts(self) -> dict[str, int]:
        """Nanoseconds by the names of ``PARTS``; the rest of the duration is none of them."""
        return {part: getattr(self, f"{part}_ns") for part in PARTS}


@dataclass(frozen=True, slots=True)
class Step:
    """One ``next()`` of the training process.

    Attributes:
        iterator: which of the iterators seen by the trace, counted from 0.
        epoch: epoch of the mini-batch.
        batch: the mini-batch's number in its epoch.
        samples: number of samples in the batch.
        asked_ns: when ``next()`` was called.
        complete_ns: when workers had finished the last tiny-batch, often long before it was asked
            for; ``None`` where workers are not seen.
        delivered_ns: when ``next()`` returned.
        began_ns: when ``iter(loader)`` was called; ``None`` but for the first batch after it.
    """

    iterator: int
    epoch: int
    batch: int
    samples: int
    asked_ns: int
    complete_ns: int | None
    delivered_ns: int
    began_ns: int | None = None

    @property
    def startup_ns(self) -> int:
        """From ``iter(loader)`` to the batch, or the wait for it where that was not seen."""
        return self.delivered_ns - (self.asked_ns if self.began_ns is None else self.began_ns)

    @property
    def wait_ns(self) -> int:
        """How long training was in ``next()``."""
        return self.delivered_ns - self.asked_ns


@dataclass(frozen=True, slots=True)
class Copy:
    """The copies of one mini-batch to the device.

    ``begin_ns`` is when they could begin with the first tiny-batch, ``end_ns`` when the last one
    was put into the stream. The device's own time is what ``torch.profiler`` shows.
    """

    iterator: int
    epoch: int
    batch: int
    nbytes: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Instant:
    """Something that happened; ``text`` says what, ``worker`` to which worker, if to one.

    Seen by the training process when it next asks for a batch or waits, at most 0.1 s later then.
    """

    at_ns: int
    kind: InstantKind
    text: str
    worker: int | None = None


@dataclass(frozen=True, slots=True)
class CounterValue:
    """The value of a counter (``READY``, ``THRESHOLD``, ``CACHED``, ``INDEXED``) at a moment."""

    at_ns: int
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Meta:
    """What a timeline is of.

    Attributes:
        pid: id of the training process.
        rank: among the ranks of the training, 0 where there is one.
        batch_size: samples of a mini-batch, ``None`` where a batch sampler or user code decides.
        tiny_batch_size: samples of a tiny-batch.
        begin_ns: when the trace was asked for.
        end_ns: when it ended.
        unix_ns: Unix time minus ``CLOCK_MONOTONIC``, in nanoseconds.
        workers: those that have done something, and those that could.
        lost: number of spans that are missing, for which a worker had no room.
        steps_only: why no worker is seen, in words; empty where they are.
        notes: what else a reader should know, a line each.
        processors: what workers and training got of them; ``None`` where that is not known.
    """

    pid: int
    rank: int
    batch_size: int | None
    tiny_batch_size: int
    begin_ns: int
    end_ns: int
    unix_ns: int
    workers: tuple[Worker, ...] = ()
    lost: int = 0
    steps_only: str = ""
    notes: tuple[str, ...] = ()
    processors: ProcessorUse | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """A trace in memory; each list is in the order of its beginnings.

    ``fusionloader.observe.trace.files`` has ``read_timeline(path)`` and
    ``write_timeline(timeline, path)``.
    """

    meta: Meta
    spans: tuple[Span, ...] = ()
    steps: tuple[Step, ...] = ()
    copies: tuple[Copy, ...] = ()
    instants: tuple[Instant, ...] = ()
    counters: tuple[CounterValue, ...] = ()

    @classmethod
    def in_order(
        cls,
        meta: Meta,
        spans: Iterable[Span],
        steps: Iterable[Step],
        copies: Iterable[Copy],
        instants: Iterable[Instant],
        counters: Iterable[CounterValue],
    ) -> Timeline:
        """Returns a timeline of values in any order."""
        return cls(
            meta,
            tuple(sorted(spans, key=attrgetter("begin_ns", "worker"))),
            tuple(sorted(steps, key=attrgetter("asked_ns"))),
            tuple(sorted(copies, key=attrgetter("begin_ns"))),
            tuple(sorted(instants, key=attrgetter("at_ns"))),
            tuple(sorted(counters, key=attrgetter("at_ns"))),
        )
