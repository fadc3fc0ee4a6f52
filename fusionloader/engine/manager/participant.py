"""What takes part in a loader's work beside its own workers, as the local manager sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from fusionloader import _native
from fusionloader.engine.delivery.device_ring import BufferOpener
from fusionloader.observe.statistics.counters import Statistics
from fusionloader.observe.trace.recorder import Recorder
from fusionloader.system.processes import Process
from fusionloader.workers.messages import Message
from fusionloader.workers.worker_set import WorkerSet

ParticipantKind = Literal["gpu", "remote", "borrowed"]
"""What statistics and traces call a participant's workers."""

Handle = Callable[[Message], None]
"""Is called with each message of a worker, with some of them twice."""

Hopeless = Callable[[], list[tuple[int, int]]]
"""Returns sequence and number of the tiny-batches that are given up if their worker has died."""


@dataclass(frozen=True, slots=True)
class LostTinyBatch:
    """A tiny-batch whose worker died while it was active.

    ``manner`` completes "worker ..."; ``given_up`` if nobody is to do it again.
    """

    sequence: int
    tiny_batch: int
    pid: int | None
    manner: str
    given_up: bool


@dataclass(frozen=True, slots=True)
class Hub:
    """What a manager shares with its participants.

    Attributes:
        queue: of its mini-batches.
        control_fd: descriptor of the control block.
        data_fd: descriptor of the slots.
        workers: CPU workers of the loader.
        most_workers: that there may ever be.
        buffers: what opens the buffers on the device, for the participant that writes into these.
    """

    queue: _native.ManagerQueue
    control_fd: int
    data_fd: int
    workers: int
    most_workers: int
    buffers: Sequence[BufferOpener] = ()


class Participant:
    """Takes part in the work on a manager's mini-batches: a pool, other ranks, a GPU worker.

    The manager tells all of them what happens, in the order in which they were given. Each method
    may be left as it is. They are called by the thread that iterates.

    Attributes:
        kind: of its workers.
        places: how many numbers in the queue are for its workers.
        first: the lowest of these numbers; set by the manager.
        are_guests: whether these are CPU workers of this machine that belong to another process.
        event_fd: of the event by which workers call for it, -1 if they do not.
        cores: how many it needs beside those of the CPU workers.
        device_buffers: how many buffers on the device its worker writes into.
        in_thread: whether that worker is a thread of this process.
        restarts: how often its worker was started again.
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
        """The queue is there, and CPU workers are about to be started."""

    def workers_started(self, workers: WorkerSet) -> None:
        """The CPU workers have been started."""

    def resized(self, workers: int) -> None:
        """There are ``workers`` CPU workers from now on."""

    def publishing(self, slot: int) -> None:
        """A mini-batch is described in a slot, and about to be published."""

    def published(self) -> None:
        """A mini-batch was published."""

    def asked(self) -> None:
        """Training asks for a batch."""

    def waiting(self) -> None:
        """Training is about to sleep, because no batch is done; called before each sleep."""

    @property
    def longest_sleep(self) -> float:
        """Seconds after which the manager is to look again, even if nothing wakes it."""
        return float("inf")

    def waited(self) -> None:
        """Training waits no more, for whatever reason."""

    def taken(self, slot: int, tiny_batches: int) -> None:
        """A mini-batch of ``tiny_batches`` is done, and its slot still as it was."""

    def delivered(self, samples: int, backlog: int, ready: int) -> None:
        """Training has a batch of ``samples``.

        ``backlog`` others are complete, too; ``ready`` mini-batches can be delivered now.
        """

    def epoch_ended(self) -> None:
        """The last batch of an epoch was delivered."""

    def receive(self, handle: Handle) -> None:
        """Calls ``handle`` with each message that has arrived; see ``Receiver.handle``."""

    def look(self, handle: Handle, hopeless: Hopeless) -> Iterable[LostTinyBatch]:
        """Replaces what has died, and yields the tiny-batches that it held.

        These are in the queue again, but for the ``hopeless``. ``handle`` gets what was reported.
        """
        return ()

    def kill(self, number: int, pid: int, why: str) -> None:
        """Kills one of its workers; ``why`` completes "worker ..."."""

    def busy_elsewhere(self, workers: Iterable[int]) -> Iterable[int]:
        """Returns which of the CPU workers are at work for another loader."""
        return ()

    def idle_window(self) -> AbstractContextManager[object]:
        """Returns a block within which training leaves the device alone, and asks for no batch."""
        return nullcontext()

    def trace_began(self) -> None:
        """A trace has begun."""

    def trace(self, recorder: Recorder, thoroughly: bool) -> None:
        """Notes what has happened since the last call; what takes long only if ``thoroughly``."""

    def record(self, statistics: Statistics) -> None:
        """Writes what it has counted into the loader's statistics."""

    @property
    def processes(self) -> list[Process]:
        """The processes that it has started for this manager."""
        return []

    @property
    def has_ended(self) -> bool:
        """Whether the manager has no workers any more, because this has ended."""
        return False

    def end(self) -> None:
        """Ends what it has started, after the queue was stopped; also if it was not started."""
