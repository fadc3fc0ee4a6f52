"""What an iterator asks of the manager of its mini-batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from fusionloader.engine.manager.in_flight import Job, Jobs, MiniBatch
from fusionloader.engine.manager.participant import Participant
from fusionloader.observe.statistics.worker_totals import WorkerTotals
from fusionloader.observe.trace.recording import Feed
from fusionloader.system.processes import Process
from fusionloader.transforms.executors.layout import Layout, Memory


class ManagerOutdated(Exception):
    """Another manager is to make what this one has not delivered; the message says why."""


class Manager(ABC):
    """Has mini-batches made, and hands out those that are done.

    Attributes:
        closed: whether it has ended.
        in_flight: the mini-batches that are under way.
        trace: what a trace is told of the workers.
    """

    closed: bool
    in_flight: Jobs
    trace: Feed

    @property
    def participants(self) -> Sequence[Participant]:
        """What takes part beside its workers."""
        return ()

    @property
    def has_lost_its_workers(self) -> bool:
        """Whether its workers were those of a participant, which has ended."""
        return any(each.has_ended for each in self.participants)

    @property
    @abstractmethod
    def layout(self) -> Layout | None:
        """Layout of a batch's rows; ``None`` until a sample has shown it."""

    @property
    @abstractmethod
    def processes(self) -> list[Process]:
        """The worker processes."""

    @abstractmethod
    def resize(self, count: int) -> None:
        """Has ``count`` CPU workers from now on, or as many as there is room for."""

    @property
    @abstractmethod
    def ahead(self) -> int:
        """Mini-batches that may be drawn now, beside those in flight."""

    @property
    @abstractmethod
    def room(self) -> int:
        """Mini-batches that may be submitted now without a wait for memory."""

    @abstractmethod
    def submit(self, batch: MiniBatch) -> None:
        """Has a mini-batch made."""

    @abstractmethod
    def next_done(self, in_order: bool) -> Job:
        """Waits for the oldest mini-batch, or with ``in_order=False`` for any, and takes it.

        Raises:
            ManagerOutdated: another manager is to make what is in flight.
            RuntimeError: after ``timeout`` seconds, or when workers cannot be started or ended.
        """

    @abstractmethod
    def take_done(self, in_order: bool) -> Job | None:
        """Returns what ``next_done`` would if it is there already, without waiting."""

    @abstractmethod
    def check(self, job: Job) -> None:
        """Called when a mini-batch that is done is about to be delivered."""

    @abstractmethod
    def deliver(self, job: Job) -> Memory:
        """Returns the owner of a mini-batch's rows; they are free when nothing refers to it."""

    @abstractmethod
    def release(self, job: Job) -> None:
        """Forgets a mini-batch that was returned or discarded, and takes back its slots."""

    @abstractmethod
    def discard(self) -> None:
        """Drops every mini-batch in flight."""

    @abstractmethod
    def receive_deferred(self) -> None:
        """Counts the deferred images that workers have reported."""

    @abstractmethod
    def totals(self) -> WorkerTotals:
        """Returns what its workers have counted, to any thread, and after the end, too."""

    @abstractmethod
    def close(self) -> None:
        """Ends the workers and gives the memory back; delivered batches stay valid."""
