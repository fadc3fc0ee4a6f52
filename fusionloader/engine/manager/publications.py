"""The life of a publication: claimed by workers, repeated or given up when they die, taken out.

A loader's manager, the coordinator of jobs that share preparation, and a ``Preprocessor`` publish
samples in a queue. Workers claim them in parts, called tiny-batches, and report what does not fit
the slots. If a worker dies, others make again what it held, until ``MOST_DEATHS`` workers have died
at one tiny-batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.workers import messages

if TYPE_CHECKING:  # the coordinator does not import torch
    from fusionloader.options.aliases import Index
    from fusionloader.system.shm.slots import Slot

MOST_DEATHS = 3  # workers that may die at one tiny-batch before it is given up


@dataclass(slots=True, eq=False, kw_only=True)
class Publication(ABC):
    """Samples in a queue, and what workers have reported about them.

    Attributes:
        sequence: number of the publication; -1 before it.
        descriptor: slot of the descriptor; ``None`` before it is allocated, and if another process
            owns it (sharing/jobs/).
        failures: failures by tiny-batch.
        deaths: number of workers that died at each tiny-batch.
    """

    sequence: int = -1
    descriptor: Slot | None = None
    failures: dict[int, messages.Failure] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)

    @property
    def slot(self) -> int:
        """Number of the descriptor's slot, which identifies the publication in the queue."""
        assert self.descriptor is not None
        return self.descriptor.number

    def forget(self, tiny_batch: int) -> None:
        """Drops the reports about a tiny-batch, which is made again."""
        self.failures.pop(tiny_batch, None)

    def is_hopeless(self, tiny_batch: int) -> bool:
        """Whether a tiny-batch is given up if one more worker dies at it."""
        return self.deaths[tiny_batch] >= MOST_DEATHS - 1

    @abstractmethod
    def give_up(self, tiny_batch: int, pid: int | None, manner: str) -> None:
        """Records that a tiny-batch fails; ``pid`` and ``manner`` are of the last death."""


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
        by_file: whether rows of one file are side by side, so that each worker begins at a part of
            its own.
    """

    number: int
    indices: list[Index]
    items: list[int]
    keys: list[int]
    occurrences: list[int]
    rows: list[int]
    seed: int
    epoch: int
    pickled: bytes = b""
    worker: int | None = None
    by_file: bool = False


Reports = tuple[dict[int, messages.Failure], dict[int, messages.SampleSkipped], dict[int, bytes]]
"""Failures, skipped samples and spilled ones of a mini-batch, as in ``PublishedBatch``."""


@dataclass(slots=True, eq=False)
class PublishedBatch(Publication):
    """A published mini-batch: its slots, and what workers have reported about it.

    Attributes:
        batch: the mini-batch.
        tiny_size: samples in a tiny-batch.
        payload: slot of the rows; ``None`` as for ``descriptor``, and until the layout is known.
        skipped: skipped samples by row.
        spilled: pickled samples that are not in their rows, by tiny-batch.
        after: state of the dataset of ``batch.worker`` after this mini-batch.
    """

    batch: MiniBatch
    tiny_size: int
    payload: Slot | None = None
    skipped: dict[int, messages.SampleSkipped] = field(default_factory=dict)
    spilled: dict[int, bytes] = field(default_factory=dict)
    after: messages.StateAfter | None = None

    @property
    def number(self) -> int:
        return self.batch.number

    @property
    def reports(self) -> Reports:
        return self.failures, self.skipped, self.spilled

    @property
    def rows(self) -> list[int]:
        """Positions in the batch, in the order of the tiny-batches."""
        return self.batch.rows

    def rows_of(self, tiny_batch: int) -> list[int]:
        return self.batch.rows[tiny_batch * self.tiny_size : (tiny_batch + 1) * self.tiny_size]

    def descriptor_bytes(self) -> int:
        samples = len(self.batch.items)
        room = _native.ManagerQueue.descriptor_bytes(samples, -(-samples // self.tiny_size))
        return room + len(self.batch.pickled)

    def describe(self, queue: _native.ManagerQueue, group_size: int, workers: int = 0) -> None:
        """Writes the descriptor into its slot; ``workers`` is how many there are to make it."""
        batch = self.batch
        queue.describe(
            self.slot,
            sequence=self.sequence,
            rows=batch.rows,
            items=batch.items,
            keys=batch.keys,
            occurrences=batch.occurrences,
            tiny_size=self.tiny_size,
            seed=batch.seed,
            epoch=batch.epoch,
            number=batch.number,
            group_size=group_size,
            payload=self.payload.number if self.payload else None,
            indices=batch.pickled,
            claimant=batch.worker,
            spread=workers if batch.by_file else 0,
        )

    def note(self, message: messages.JobMessage) -> None:
        if isinstance(message, messages.TinyBatchFailed):
            self.failures[message.tiny_batch] = message.failure
        elif isinstance(message, messages.SampleSkipped):
            self.skipped[message.row] = message
        elif isinstance(message, messages.StateAfter):
            self.after = message
        else:
            self.spilled[message.tiny_batch] = message.samples

    def forget(self, tiny_batch: int) -> None:
        Publication.forget(self, tiny_batch)
        self.spilled.pop(tiny_batch, None)
        self.after = None
        for row in self.rows_of(tiny_batch):
            self.skipped.pop(row, None)


P = TypeVar("P", bound=Publication)


class Publications(ABC, Generic[P]):
    """What is published in a queue and needed here, the oldest first."""

    def __init__(self, queue: _native.ManagerQueue, ring_size: int) -> None:
        self._queue, self._ring_size = queue, ring_size

    @abstractmethod
    def __iter__(self) -> Iterator[P]: ...

    @property
    @abstractmethod
    def oldest(self) -> int:
        """Sequence of the first publication that workers may still claim or write."""

    @property
    def ring_room(self) -> int:
        """Number of free ring entries. The oldest publication may be far behind the others."""
        return self._ring_size - (self._queue.published - self.oldest)

    def find(self, sequence: int) -> P | None:
        return next((each for each in self if each.sequence == sequence), None)

    def give_back(
        self, worker: int, pid: int | None, manner: str, is_accident: bool = True
    ) -> bool:
        """Has others make what a worker held whose process has ended; returns whether it held any.

        If this raises, it may be called again.

        Args:
            worker: number of the worker.
            pid: its process id.
            manner: how it died; completes "worker ...".
            is_accident: whether what it held may be the cause.
        """
        hopeless = []
        for each in self:
            for held in self._queue.in_state(each.slot, TinyBatchState.ACTIVE):
                if held.worker != worker:
                    continue
                # First: once it is given back, another worker may report on it.
                each.forget(held.tiny_batch)
                if is_accident and each.is_hopeless(held.tiny_batch):
                    each.give_up(held.tiny_batch, pid, manner)
                    hopeless.append((each.sequence, held.tiny_batch))
        lost = self._queue.take_back(worker, hopeless)
        for claim in lost if is_accident else ():
            publication = self.find(claim.sequence)
            if publication is not None:
                publication.deaths[claim.tiny_batch] += 1
        return bool(lost)


class OpenPublications(Publications[P]):
    """Publications until workers have finished with them."""

    oldest = 0

    def __init__(self, queue: _native.ManagerQueue, ring_size: int) -> None:
        super().__init__(queue, ring_size)
        self._open: dict[int, P] = {}  # by sequence

    def __iter__(self) -> Iterator[P]:
        return iter(list(self._open.values()))  # a copy: other threads publish

    def __len__(self) -> int:
        return len(self._open)

    def find(self, sequence: int) -> P | None:
        return self._open.get(sequence)

    def publish(self, publication: P, most_woken: int = (1 << 32) - 1) -> None:
        """Publishes what was described; wakes at most ``most_woken`` workers."""
        self._open[publication.sequence] = publication
        self._queue.publish(publication.slot, publication.sequence, most_woken)

    def take_out(self, publication: P) -> None:
        """Removes a publication; workers begin their search behind it if it was the oldest."""
        del self._open[publication.sequence]
        self.oldest = next(iter(self._open), self._queue.published)
        self._queue.deliver_until(self.oldest)


def describe_deaths(who: str, pid: int | None, manner: str, samples: str) -> str:
    """Returns the error of a tiny-batch that was given up; ``samples`` are its samples' names."""
    return (
        f"{who} (pid {pid}) {manner}. {MOST_DEATHS} workers died on the same samples; one of these "
        f"is the cause: {samples}"
    )
