"""The interface of participants: what serves a loader beside its own CPU workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from fusionloader import _native
from fusionloader.engine.delivery.device_ring import BufferOpener
from fusionloader.engine.manager.publications import Publications
from fusionloader.observe.statistics.loader_statistics import Statistics
from fusionloader.observe.trace.recorder import Recorder
from fusionloader.system.processes import Process
from fusionloader.workers.messages import Message
from fusionloader.workers.worker_set import WorkerSet

ParticipantKind = Literal["gpu", "remote", "borrowed"]
"""Kind of a participant's workers in statistics and traces."""

Handle = Callable[[Message], None]
"""Called with each message of a worker, with some of them twice."""


@dataclass(frozen=True, slots=True)
class Hub:
    """What a manager shares with its participants.

    Attributes:
        queue: the queue of mini-batches.
        control_fd: descriptor of the control block.
        data_fd: descriptor of the slots.
        workers: number of the loader's CPU workers.
        most_workers: highest later number of CPU workers.
        buffers: openers of the device buffers, for the participant that writes into them.
    """

    queue: _native.ManagerQueue
    control_fd: int
    data_fd: int
    workers: int
    most_workers: int
    buffers: Sequence[BufferOpener] = ()


class Participant:
    """Takes part in the work on a manager's mini-batches: a pool, other ranks, a GPU worker.

    The manager reports each event to all participants, in the order of its list, from the thread
    that iterates. All methods have defaults, so a subclass overrides only those it needs.

    Attributes:
        kind: kind of its workers.
        places: number of queue places for its workers.
        first: lowest worker number of these places; set by the manager.
        are_guests: whether its workers are CPU workers of this machine owned by another process.
        event_fd: descriptor of the event by which workers wake it, -1 without one.
        cores: number of cores that it needs beside those of the CPU workers.
        device_buffers: number of device buffers that its worker writes into.
        in_thread: whether that worker is a thread of this process.
        restarts: how often its worker was restarted.
    """

    kind: ParticipantKind = "borrowed"
    places = 0
    first = -1
    are_guests = False
    event_fd = -1
    cores = 0
    device_buffers = 0
    in_thread = False
    restarts = 0

    def start(self, hub: Hub) -> None:
        """The queue exists, and the CPU workers are about to start."""

    def workers_started(self, workers: WorkerSet) -> None:
        """The CPU workers have started."""

    def resized(self, workers: int) -> None:
        """There are ``workers`` CPU workers from now on."""

    def publishing(self, slot: int) -> None:
        """The mini-batch whose descriptor is in ``slot`` is about to be published."""

    def published(self) -> None:
        """A mini-batch was published."""

    def asked(self) -> None:
        """Training asks for a batch."""

    def waiting(self) -> None:
        """No batch is done, and training is about to sleep. Called before each sleep."""

    @property
    def longest_sleep(self) -> float:
        """Most seconds that the manager may sleep before it looks again."""
        return float("inf")

    def waited(self) -> None:
        """The wait for a batch has ended, with or without a batch."""

    def taken(self, slot: int, tiny_batches: int) -> None:
        """The mini-batch in ``slot`` is done; its slot is not yet freed."""

    def delivered(self, samples: int, backlog: int, ready: int) -> None:
        """A batch of ``samples`` was delivered.

        ``backlog`` is the number of other complete samples, ``ready`` that of mini-batches that
        can be delivered now.
        """

    def epoch_ended(self) -> None:
        """The last batch of an epoch was delivered."""

    def receive(self, handle: Handle) -> None:
        """Calls ``handle`` with each message that has arrived, see ``Receiver.handle``."""

    def look(self, handle: Handle, publications: Publications[Any]) -> None:
        """Replaces dead workers, and has others make what they held of ``publications``.

        ``handle`` is called with the last reports of the dead workers.
        """

    def kill(self, number: int, pid: int, why: str) -> None:
        """Kills one of its workers; ``why`` completes "worker ..."."""

    def busy_elsewhere(self, workers: Iterable[int]) -> Iterable[int]:
        """Returns those of the CPU workers that work for another loader now."""
        return ()

    def idle_window(self) -> AbstractContextManager[object]:
        """Returns a block in which training neither uses the device nor asks for a batch."""
        return nullcontext()

    def trace_began(self) -> None:
        """A trace has begun."""

    def trace(self, recorder: Recorder, thoroughly: bool) -> None:
        """Records events since the last call; slow queries only if ``thoroughly``."""

    def record(self, statistics: Statistics) -> None:
        """Writes its counters into the loader's statistics."""

    @property
    def processes(self) -> list[Process]:
        """Processes that it has started for this manager."""
        return []

    @property
    def has_ended(self) -> bool:
        """Whether the manager's workers were its own, and have ended with it."""
        return False

    def end(self) -> None:
        """Ends its processes, after the queue was stopped. ``start`` may not have been called."""
