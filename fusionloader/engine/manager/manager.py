"""The interface between an iterator and the manager of its mini-batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from fusionloader.engine.manager.in_flight import Job, Jobs
from fusionloader.engine.manager.participant import Participant
from fusionloader.engine.manager.publications import MiniBatch
from fusionloader.observe.statistics.worker_totals import WorkerTotals
from fusionloader.observe.trace.recording import Feed
from fusionloader.options.aliases import Batch
from fusionloader.system.processes import Process
from fusionloader.transforms.executors.layout import Layout, Memory


class ManagerOutdated(Exception):
    """Another manager must make the undelivered mini-batches; the message says why."""


class Manager(ABC):
    """Lets workers make mini-batches, and returns those that are done.

    Attributes:
        closed: whether it was closed.
        in_flight: mini-batches that were submitted and not yet returned.
        trace: feed of the workers' spans for a trace.
    """

    closed: bool
    in_flight: Jobs
    trace: Feed

    @property
    def participants(self) -> Sequence[Participant]:
        """Participants beside the loader's workers."""
        return ()

    @property
    def has_lost_its_workers(self) -> bool:
        """Whether its workers belonged to a participant that has ended, such as a closed pool."""
        return any(each.has_ended for each in self.participants)

    @property
    @abstractmethod
    def layout(self) -> Layout | None:
        """Layout of a batch's rows; ``None`` until the first sample is made."""

    @property
    @abstractmethod
    def processes(self) -> list[Process]:
        """Worker processes, and those of the participants."""

    @abstractmethod
    def resize(self, count: int) -> None:
        """Changes the number of CPU workers to ``count``, or to the most there is room for."""

    @property
    @abstractmethod
    def ahead(self) -> int:
        """Number of mini-batches that may be drawn now, beside those in flight."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Number of mini-batches that may be submitted now without a wait for memory."""

    @abstractmethod
    def submit(self, batch: MiniBatch) -> None:
        """Gives a mini-batch to the workers.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """

    @abstractmethod
    def next_done(self, in_order: bool) -> Job:
        """Waits for the oldest mini-batch, or with ``in_order=False`` for any, and takes it.

        Raises:
            ManagerOutdated: another manager must make the mini-batches in flight.
            RuntimeError: after ``timeout`` seconds, or when workers cannot be started or ended.
        """

    @abstractmethod
    def take_done(self, in_order: bool) -> Job | None:
        """Takes a mini-batch as ``next_done`` does, but returns ``None`` instead of waiting."""

    @abstractmethod
    def deliver(self, job: Job) -> Memory:
        """Returns the owner of a mini-batch's rows. They are freed with the owner."""

    @abstractmethod
    def deliver_whole(self, job: Job) -> Batch:
        """Returns a mini-batch that a worker has made whole."""

    @abstractmethod
    def release(self, job: Job) -> None:
        """Removes a mini-batch that was returned or discarded, and frees its slots."""

    @abstractmethod
    def discard(self) -> None:
        """Drops every mini-batch in flight."""

    @abstractmethod
    def receive_deferred(self) -> None:
        """Counts the deferred images that workers have reported."""

    @abstractmethod
    def totals(self) -> WorkerTotals:
        """Returns the workers' counters. Any thread may call it, also after ``close``."""

    @abstractmethod
    def close(self) -> None:
        """Ends the workers and frees the memory. Delivered batches stay valid."""
