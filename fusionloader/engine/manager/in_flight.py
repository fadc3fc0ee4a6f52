"""Mini-batches in flight: what is published, what has become known of it, how far it is."""

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

MOST_DEATHS = 3  # of workers at one tiny-batch


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """A mini-batch as it is published.

    ``number`` is its place in the epoch. ``indices`` are what the batch sampler gave. ``items``
    (numbers for the worker), ``keys`` and ``occurrences`` (for random draws) have an entry per
    index; ``rows`` gives the places in the batch in the order in which tiny-batches are cut.
    ``pickled`` are the indices where a number does not say everything. ``worker`` where one alone
    may make it, which goes through the dataset on its own.
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

    ``descriptor`` and ``payload`` are ``None`` where another process has them (coordinated/), the
    latter also until the layout is known. ``sequence`` counts publications. ``failures``,
    ``spilled`` samples and ``deaths`` of workers are by tiny-batch, ``skipped`` samples by row.
    ``after`` says where the worker's dataset stands that one with a ``worker`` was made of. One
    that is ``taken`` is done; ``thread`` identifies the thread whose ``next()`` is about to return
    it. One that is ``returned`` was, and one that is ``discarded`` is not wanted any more.
    ``owner`` is that of its rows once they are leased, ``arriving`` its copy to the device and
    ``result`` the batch that was made of it; ``pinned`` becomes that batch in page-locked memory.
    While a trace is on, ``complete_ns`` is when its last tiny-batch was finished, by
    ``CLOCK_MONOTONIC``.
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
        """The mini-batch's place in the epoch."""
        return self.batch.number

    @property
    def worker(self) -> int:
        """Number of the worker that alone may make it, -1 where any may."""
        return -1 if self.batch.worker is None else self.batch.worker

    def named(self, row: int, name: Callable[[Index], str]) -> str:
        """Returns the name of a sample, or of the mini-batch where samples have none."""
        return name(self.indices[row]) if self.worker < 0 else f"mini-batch {self.number}"

    @property
    def indices(self) -> Sequence[Index]:
        """What the batch sampler gave."""
        return self.batch.indices

    @property
    def rows(self) -> list[int]:
        """Places in the batch, in the order of the tiny-batches."""
        return self.batch.rows

    @property
    def slot(self) -> int:
        """Number of the slot of its descriptor, by which the queue knows it."""
        assert self.descriptor is not None
        return self.descriptor.number

    def rows_of(self, tiny_batch: int, size: int) -> list[int]:
        """Returns the rows of one tiny-batch of ``size`` samples."""
        return self.batch.rows[tiny_batch * size : (tiny_batch + 1) * size]

    def note(self, message: messages.JobMessage) -> None:
        """Keeps what a worker reports."""
        if isinstance(message, messages.TinyBatchFailed):
            self.failures[message.tiny_batch] = message.failure
        elif isinstance(message, messages.SampleSkipped):
            self.skipped[message.row] = message
        elif isinstance(message, messages.StateAfter):
            self.after = message
        else:
            self.spilled[message.tiny_batch] = message.samples

    def forget(self, tiny_batch: int, size: int) -> None:
        """Drops what was reported about a tiny-batch of ``size`` samples that is done again."""
        self.failures.pop(tiny_batch, None)
        self.spilled.pop(tiny_batch, None)
        self.after = None
        for row in self.rows_of(tiny_batch, size):
            self.skipped.pop(row, None)

    def unreported(self, queue: _native.ManagerQueue, size: int) -> list[int]:
        """Returns tiny-batches of ``size`` samples whose state asks for a report there is not.

        A row that nobody wrote would be delivered without one.
        """
        status = queue.status(self.slot)
        if not (status.failed or status.spilled or status.skipped):
            return []
        if len(self.rows) <= size and (
            self.spilled if status.spilled else status.skipped and self.after
        ):
            return []  # the only one
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
    """Mini-batches from their submission until they were returned, the oldest first.

    What becomes of one is written into its job, which stays in ``jobs`` until ``next()`` has
    returned the batch. So an exception between two steps loses none: the next call finds it where
    it was.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def is_done(self, job: Job) -> bool:
        """Whether it can be delivered."""
        raise NotImplementedError

    def discard(self) -> None:
        """Marks all as not wanted any more."""
        for job in self.jobs:
            job.discarded = True

    @property
    def undelivered(self) -> list[Job]:
        """Those that ``next()`` is still to return."""
        return [job for job in self.jobs if not (job.returned or job.discarded)]

    @property
    def wanted(self) -> list[Job]:
        """Those of them that are still to be made."""
        return [job for job in self.jobs if not (job.taken or job.discarded)]

    def taken(self, thread: int) -> list[Job]:
        """Returns those of them that are done, but for what other threads are about to return."""
        return [job for job in self.undelivered if job.taken and job.thread in (None, thread)]

    @property
    def returned(self) -> list[Job]:
        """Those that ``next()`` has returned."""
        return [job for job in self.jobs if job.returned]

    @property
    def ready(self) -> int:
        """Mini-batches that could be taken now, in order."""
        return sum(1 for _ in itertools.takewhile(self.is_done, self.wanted))

    @property
    def completed(self) -> int:
        """Tiny-batches that are complete, as far as that is known."""
        return 0

    def done(self, in_order: bool) -> Job | None:
        """Returns one that can be taken; with ``in_order`` no other than the oldest."""
        wanted = self.wanted[:1] if in_order else self.wanted
        return next(filter(self.is_done, wanted), None)


class InFlight(Jobs):
    """A queue's published mini-batches."""

    def __init__(self, queue: _native.ManagerQueue, tiny_batch_size: int) -> None:
        super().__init__()
        self._queue, self._size = queue, tiny_batch_size

    def is_done(self, job: Job) -> bool:
        """Whether none of its tiny-batches is waiting or active."""
        return self._queue.status(job.slot).done

    def find(self, sequence: int) -> Job | None:
        """Returns the one that was published as ``sequence``, if it is still in flight."""
        return next((job for job in self.jobs if job.sequence == sequence), None)

    def hopeless(self) -> list[tuple[int, int]]:
        """Returns the tiny-batches, with their sequence, that cost all but one of the workers."""
        return [
            (job.sequence, tiny_batch)
            for job in self.jobs
            for tiny_batch, deaths in job.deaths.items()
            if deaths >= MOST_DEATHS - 1
        ]

    @property
    def completed(self) -> int:
        """Tiny-batches that are complete."""
        return sum(self._queue.status(job.slot).completed for job in self.wanted)

    @property
    def oldest(self) -> int:
        """Sequence of the first one that workers may have to do with."""
        return next((job.sequence for job in self.jobs if not job.taken), self._queue.published)

    def forget_reports(self, worker: int) -> None:
        """Drops what a dead worker reported about tiny-batches that it still holds."""
        for job in self.jobs:
            for held in self._queue.held(job.slot):
                if held.worker == worker:
                    job.forget(held.tiny_batch, self._size)

    def dropped(self) -> list[Job]:
        """Returns discarded ones that no worker can claim or write in any more."""
        return [job for job in self.jobs if job.discarded and self.is_done(job)]
