"""Mini-batches in flight: what is published, what has become known of it, how far it is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fusionloader import _native
from fusionloader.aliases import Index
from fusionloader.delivery.device_batches import Copying
from fusionloader.shm.slots import Slot
from fusionloader.workers import messages

MOST_DEATHS = 3  # of workers at one tiny-batch


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """A mini-batch as it is published.

    ``number`` is its place in the epoch. ``indices`` are what the batch sampler gave. ``items``
    (numbers for the worker), ``keys`` and ``occurrences`` (for random draws) have an entry per
    index; ``rows`` gives the places in the batch in the order in which tiny-batches are cut.
    ``pickled`` are the indices where a number does not say everything.
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


@dataclass(slots=True, eq=False)
class Job:
    """A published mini-batch: its slots, and what workers have reported about it.

    ``descriptor`` and ``payload`` are ``None`` where another process has them (coordinated/), the
    latter also until the layout is known. ``sequence`` counts publications; ``deaths`` has those of
    workers by tiny-batch. While a trace is on, ``complete_ns`` is when its last tiny-batch was
    finished, by ``CLOCK_MONOTONIC``.
    """

    batch: MiniBatch
    sequence: int
    descriptor: Slot | None
    payload: Slot | None
    failures: list[messages.Failure] = field(default_factory=list)
    skipped: list[messages.SampleSkipped] = field(default_factory=list)
    spilled: dict[int, bytes] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)
    discarded: bool = False
    copying: Copying | None = None
    complete_ns: int | None = None

    @property
    def number(self) -> int:
        """The mini-batch's place in the epoch."""
        return self.batch.number

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
            self.failures.append(message.failure)
        elif isinstance(message, messages.SampleSkipped):
            # A tiny-batch that is done again reports again.
            self.skipped = [skip for skip in self.skipped if skip.row != message.row]
            self.skipped.append(message)
        else:
            self.spilled[message.tiny_batch] = message.samples


class InFlight:
    """A queue's published mini-batches, the oldest first."""

    def __init__(self, queue: _native.ManagerQueue) -> None:
        self._queue = queue
        self.jobs: list[Job] = []

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

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

    def discard(self) -> None:
        """Marks all as not wanted any more."""
        for job in self.jobs:
            job.discarded = True

    @property
    def wanted(self) -> list[Job]:
        """Those that the caller is still to get."""
        return [job for job in self.jobs if not job.discarded]

    @property
    def completed(self) -> int:
        """Tiny-batches that are complete."""
        return sum(self._queue.status(job.slot).completed for job in self.wanted)

    @property
    def ready(self) -> int:
        """Mini-batches that could be delivered now, in order."""
        return sum(1 for _ in itertools.takewhile(self._is_done, self.wanted))

    def done(self, in_order: bool) -> Job | None:
        """Returns one that can be delivered; with ``in_order`` no other than the oldest."""
        wanted = self.wanted[:1] if in_order else self.wanted
        return next(filter(self._is_done, wanted), None)

    def dropped(self) -> list[Job]:
        """Returns discarded ones that no worker writes into any more."""
        return [
            job for job in self.jobs if job.discarded and self._queue.status(job.slot).active == 0
        ]

    def _is_done(self, job: Job) -> bool:
        return self._queue.status(job.slot).done
