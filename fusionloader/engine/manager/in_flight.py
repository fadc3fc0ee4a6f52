"""Mini-batches in flight: what was published, what workers reported, and the state of each."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.engine.delivery.device_batches import Arriving, Copying
from fusionloader.engine.manager.publications import Publications, PublishedBatch, describe_deaths
from fusionloader.options.aliases import Batch, Index
from fusionloader.system.shm.slots import Slot
from fusionloader.transforms.executors.layout import Memory
from fusionloader.workers import messages


@dataclass(slots=True, eq=False)
class Job(PublishedBatch):
    """A mini-batch from its submission until it was returned.

    Attributes:
        name: returns a sample's name from its index.
        repeats: how often each tiny-batch was made again because its report was missing.
        discarded: whether the batch is no longer needed.
        taken: whether it is done and was taken out of the queue.
        thread: identifier of the thread whose ``next()`` is about to return it.
        position: its place among the mini-batches of an iterable dataset, in the order in which
            they are taken; -1 before.
        returned: whether ``next()`` has returned it, or its error.
        owner: owner of the rows once they are leased.
        result: the batch once it is assembled.
        pinned: future of the batch in page-locked memory.
        copying: the copy to the device while tiny-batches are still being made.
        arriving: the copy to the device once all rows are enqueued.
        complete_ns: time when the last tiny-batch finished, by ``CLOCK_MONOTONIC``; only while a
            trace is recorded.
    """

    name: Callable[[Index], str] = field(kw_only=True)
    repeats: Counter[int] = field(default_factory=Counter)
    discarded: bool = False
    taken: bool = False
    thread: int | None = None
    position: int = -1
    returned: bool = False
    owner: Memory | None = None
    result: Batch = None
    pinned: Future[Batch] | None = None
    copying: Copying | None = None
    arriving: Arriving | None = None
    complete_ns: int | None = None

    @property
    def worker(self) -> int:
        """Number of the only worker that may make it, -1 for any worker."""
        return -1 if self.batch.worker is None else self.batch.worker

    @property
    def is_in_payload(self) -> bool:
        """Whether a worker of another rank has written a whole batch into ``payload``."""
        reported = self.spilled or self.failures or self.skipped
        return self.payload is not None and bool(self.indices) and not reported

    def unleased(self, whole: bool) -> Slot | None:
        """Returns ``payload`` unless it is leased, when it is freed with ``owner``.

        With ``whole``, the owner of a batch that an own worker has sent is of that worker's memory.
        """
        is_leased = self.owner is not None and not (whole and self.spilled)
        return None if is_leased else self.payload

    def named(self, row: int) -> str:
        """Returns the name of a sample, or of the mini-batch if its samples have no names."""
        return self.name(self.indices[row]) if self.worker < 0 else f"mini-batch {self.number}"

    @property
    def indices(self) -> list[Index]:
        return self.batch.indices

    def give_up(self, tiny_batch: int, pid: int | None, manner: str) -> None:
        names = ", ".join(map(self.named, self.rows_of(tiny_batch)))
        died = describe_deaths("DataLoader worker", pid, manner, names)
        text = f"{died}. Load them with num_workers=0 to see where"
        row = min(self.rows_of(tiny_batch))
        self.failures[tiny_batch] = messages.Failure(pickle.dumps(RuntimeError), text, row)

    def unreported(self, queue: _native.ManagerQueue) -> list[int]:
        """Returns the tiny-batches whose state requires a missing report.

        Without the report, rows that no worker wrote would be delivered.
        """
        status = queue.status(self.slot)
        if not (status.failed or status.spilled or status.skipped):
            return []
        if len(self.rows) <= self.tiny_size and (
            self.spilled if status.spilled else status.skipped and self.after
        ):
            return []  # there is one tiny-batch, and its report is there
        reported: dict[TinyBatchState, Collection[int]] = {
            TinyBatchState.FAILED: self.failures,
            TinyBatchState.SPILLED: self.spilled,
            TinyBatchState.SKIPPED: {
                position // self.tiny_size
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
        """Returns undelivered jobs that are taken, without those of other threads' ``next()``.

        The first is that which this thread's ``next()`` is about to return, if there is one.
        """
        jobs = [job for job in self.undelivered if job.taken and job.thread in (None, thread)]
        return sorted(jobs, key=lambda job: job.thread is None)

    def leave(self, thread: int) -> None:
        """Gives the jobs that a thread's ``next()`` was to return to any thread's.

        It may be called while another thread's call changes ``jobs``.
        """
        for job in self.jobs[:]:
            if job.thread == thread:
                job.thread = None

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


class InFlight(Jobs, Publications[Job]):
    """The published mini-batches of a queue."""

    def __init__(self, queue: _native.ManagerQueue, ring_size: int) -> None:
        Jobs.__init__(self)
        Publications.__init__(self, queue, ring_size)

    def is_done(self, job: Job) -> bool:
        return self._queue.status(job.slot).done

    @property
    def completed(self) -> int:
        return sum(self._queue.status(job.slot).completed for job in self.wanted)

    @property
    def oldest(self) -> int:
        return next((job.sequence for job in self.jobs if not job.taken), self._queue.published)

    def dropped(self) -> list[Job]:
        """Returns discarded jobs that no worker can claim or write any more."""
        return [job for job in self.jobs if job.discarded and self.is_done(job)]
