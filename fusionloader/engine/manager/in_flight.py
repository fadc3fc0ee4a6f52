"""Mini-batches in flight: what was published, what workers reported, and the state of each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.engine.delivery.device_batches import Arriving, Copying
from fusionloader.options.aliases import Batch, Index
from fusionloader.system.shm.slots import Slot
from fusionloader.transforms.executors.layout import Memory
from fusionloader.workers import messages

MOST_DEATHS = 3  # workers that may die at one tiny-batch before it is given up


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """A mini-batch as it is published.

    Attributes:
        number: position in the epoch.
        indices: indices from the batch sampler.
        items: sample numbers for the worker, one per index.
        keys: keys of the random draws, one per index.
        occurrences: how often each index occurred before in the epoch, for the random draws.
        rows: positions in the batch, in the order in which tiny-batches are cut.
        seed: seed of the epoch's draws.
        epoch: number of the epoch.
        pickled: the pickled indices, where ``items`` do not identify the samples.
        worker: number of the only worker that may make it; ``None`` for any worker.
    """

    number: int
    indices: Sequence[Index]
    items: list[int]
    keys: list[int]
    occurrences: list[int]
    rows: list[int]
    seed: int
    epoch: int
    pickled: bytes = b""
    worker: int | None = None


@dataclass(slots=True, eq=False)
class Job:
    """A published mini-batch: its slots, and what workers have reported about it.

    Attributes:
        batch: the mini-batch.
        sequence: number of the publication.
        descriptor: slot of the descriptor; ``None`` if another process owns it (sharing/jobs/).
        payload: slot of the rows; ``None`` as above, and until the layout is known.
        failures: failures by tiny-batch.
        skipped: skipped samples by row.
        spilled: pickled samples that are not in their rows, by tiny-batch.
        after: state of the dataset of ``batch.worker`` after this mini-batch.
        deaths: number of workers that died at each tiny-batch.
        repeats: how often each tiny-batch was made again because its report was missing.
        discarded: whether the batch is no longer needed.
        taken: whether it is done and was taken out of the queue.
        thread: identifier of the thread whose ``next()`` is about to return it.
        returned: whether ``next()`` has returned it, or its error.
        owner: owner of the rows once they are leased.
        result: the batch once it is assembled.
        pinned: future of the batch in page-locked memory.
        copying: the copy to the device while tiny-batches are still being made.
        arriving: the copy to the device once all rows are enqueued.
        complete_ns: time when the last tiny-batch finished, by ``CLOCK_MONOTONIC``; only while a
            trace is recorded.
    """

    batch: MiniBatch
    sequence: int
    descriptor: Slot | None
    payload: Slot | None
    failures: dict[int, messages.Failure] = field(default_factory=dict)
    skipped: dict[int, messages.SampleSkipped] = field(default_factory=dict)
    spilled: dict[int, bytes] = field(default_factory=dict)
    after: messages.StateAfter | None = None
    deaths: Counter[int] = field(default_factory=Counter)
    repeats: Counter[int] = field(default_factory=Counter)
    discarded: bool = False
    taken: bool = False
    thread: int | None = None
    returned: bool = False
    owner: Memory | None = None
    result: Batch = None
    pinned: Future[Batch] | None = None
    copying: Copying | None = None
    arriving: Arriving | None = None
    complete_ns: int | None = None

    @property
    def number(self) -> int:
        return self.batch.number

    @property
    def worker(self) -> int:
        """Number of the only worker that may make it, -1 for any worker."""
        return -1 if self.batch.worker is None else self.batch.worker

    def named(self, row: int, name: Callable[[Index], str]) -> str:
        """Returns the name of a sample, or of the mini-batch if its samples have no names."""
        return name(self.indices[row]) if self.worker < 0 else f"mini-batch {self.number}"

    @property
    def indices(self) -> Sequence[Index]:
        return self.batch.indices

    @property
    def rows(self) -> list[int]:
        """Positions in the batch, in the order of the tiny-batches."""
        return self.batch.rows

    @property
    def slot(self) -> int:
        """Number of the descriptor's slot, which identifies the mini-batch in the queue."""
        assert self.descriptor is not None
        return self.descriptor.number

    def rows_of(self, tiny_batch: int, size: int) -> list[int]:
        return self.batch.rows[tiny_batch * size : (tiny_batch + 1) * size]

    def note(self, message: messages.JobMessage) -> None:
        if isinstance(message, messages.TinyBatchFailed):
            self.failures[message.tiny_batch] = message.failure
        elif isinstance(message, messages.SampleSkipped):
            self.skipped[message.row] = message
        elif isinstance(message, messages.StateAfter):
            self.after = message
        else:
            self.spilled[message.tiny_batch] = message.samples

    def forget(self, tiny_batch: int, size: int) -> None:
        """Drops the reports about a tiny-batch of ``size`` samples, which is made again."""
        self.failures.pop(tiny_batch, None)
        self.spilled.pop(tiny_batch, None)
        self.after = None
        for row in self.rows_of(tiny_batch, size):
            self.skipped.pop(row, None)

    def unreported(self, queue: _native.ManagerQueue, size: int) -> list[int]:
        """Returns the tiny-batches of ``size`` samples whose state requires a missing report.

        Without the report, rows that no worker wrote would be delivered.
        """
        status = queue.status(self.slot)
        if not (status.failed or status.spilled or status.skipped):
            return []
        if len(self.rows) <= size and (
            self.spilled if status.spilled else status.skipped and self.after
        ):
            return []  # there is one tiny-batch, and its report is there
        reported: dict[TinyBatchState, Collection[int]] = {
            TinyBatchState.FAILED: self.failures,
            TinyBatchState.SPILLED: self.spilled,
            TinyBatchState.SKIPPED: {
                position // size
                for position, row in enumerate(self.rows if self.skipped else ())
                if row in self.skipped
            },
        }
        return [
            held.tiny_batch
            for state, known in reported.items()
            for held in queue.in_state(self.slot, state)
            if held.tiny_batch not in known
        ]


class Jobs:
    """Mini-batches from submission until return, the oldest first.

    Each step is recorded in the job, which stays in ``jobs`` until ``next()`` has returned the
    batch. So an exception between two steps loses no batch: the next call finds the job as it was.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def is_done(self, job: Job) -> bool:
        """Whether a mini-batch can be delivered."""
        raise NotImplementedError

    def discard(self) -> None:
        for job in self.jobs:
            job.discarded = True

    @property
    def undelivered(self) -> list[Job]:
        """Jobs that ``next()`` has yet to return."""
        return [job for job in self.jobs if not (job.returned or job.discarded)]

    @property
    def wanted(self) -> list[Job]:
        """Jobs that are not taken yet, and needed."""
        return [job for job in self.jobs if not (job.taken or job.discarded)]

    def taken(self, thread: int) -> list[Job]:
        """Returns undelivered jobs that are taken, without those of other threads' ``next()``."""
        return [job for job in self.undelivered if job.taken and job.thread in (None, thread)]

    @property
    def returned(self) -> list[Job]:
        return [job for job in self.jobs if job.returned]

    @property
    def ready(self) -> int:
        """Number of mini-batches that can be taken now, in order."""
        return sum(1 for _ in itertools.takewhile(self.is_done, self.wanted))

    @property
    def completed(self) -> int:
        """Number of completed tiny-batches in ``wanted`` jobs; 0 if unknown."""
        return 0

    def done(self, in_order: bool) -> Job | None:
        """Returns a job that can be taken; with ``in_order`` only the oldest is considered."""
        wanted = self.wanted[:1] if in_order else self.wanted
        return next(filter(self.is_done, wanted), None)


class InFlight(Jobs):
    """The published mini-batches of a queue."""

    def __init__(self, queue: _native.ManagerQueue, tiny_batch_size: int) -> None:
        super().__init__()
        self._queue, self._size = queue, tiny_batch_size

    def is_done(self, job: Job) -> bool:
        return self._queue.status(job.slot).done

    def find(self, sequence: int) -> Job | None:
        """Returns the job published as ``sequence``, if it is still in flight."""
        return next((job for job in self.jobs if job.sequence == sequence), None)

    def hopeless(self) -> list[tuple[int, int]]:
        """Returns (sequence, tiny-batch) pairs that are given up at the next death of a worker."""
        return [
            (job.sequence, tiny_batch)
            for job in self.jobs
            for tiny_batch, deaths in job.deaths.items()
            if deaths >= MOST_DEATHS - 1
        ]

    @property
    def completed(self) -> int:
        return sum(self._queue.status(job.slot).completed for job in self.wanted)

    @property
    def oldest(self) -> int:
        """Sequence of the first mini-batch that workers may still claim or write."""
        return next((job.sequence for job in self.jobs if not job.taken), self._queue.published)

    def forget_reports(self, worker: int) -> None:
        """Drops a dead worker's reports about tiny-batches that it still holds."""
        for job in self.jobs:
            for held in self._queue.held(job.slot):
                if held.worker == worker:
                    job.forget(held.tiny_batch, self._size)

    def dropped(self) -> list[Job]:
        """Returns discarded jobs that no worker can claim or write any more."""
        return [job for job in self.jobs if job.discarded and self.is_done(job)]
