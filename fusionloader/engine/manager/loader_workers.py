"""The CPU workers of a local manager: processes of the loader, of a pool, or of other ranks."""

from __future__ import annotations

import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from fusionloader import _native
from fusionloader.engine.manager.in_flight import InFlight
from fusionloader.engine.manager.options import ManagerOptions, StartWorker, WorkerConnection
from fusionloader.engine.manager.remote_proxy import RemoteProxy
from fusionloader.engine.manager.worker_report import worker_report
from fusionloader.engine.manager.worker_totals import stats_of, totals_of
from fusionloader.observe.statistics.snapshot import AnyWorkerKind, WorkerStats
from fusionloader.observe.statistics.totals import MemoryTotals, WorkerTotals
from fusionloader.sharing.pool.binding import PoolBinding
from fusionloader.sharing.ranks.borrowed_workers import BorrowedWorkers
from fusionloader.sharing.ranks.membership import GUEST_SLOTS, Membership
from fusionloader.sharing.remote.board import LANES
from fusionloader.system.cpus import lease
from fusionloader.system.processes import Process
from fusionloader.workers.messages import Message
from fusionloader.workers.worker_set import Death, WorkerSet

log = logging.getLogger("fusionloader.manager")

Handle = Callable[[Message], None]
"""Is called with each message of a worker, with some of them twice."""


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


class LoaderWorkers:
    """Starts the workers, finds the dead among them, replaces them, and ends them.

    Attributes:
        count: how many there are to be.
        most: how many of the loader's there may ever be.
        first_remote: number of the first lane to a remote worker.
        first_guest_slot: number of the first worker of another rank.
    """

    def __init__(self, options: ManagerOptions, most: int) -> None:
        self._options = options
        self.most = most
        self.count = options.workers
        self.first_remote = most + (options.gpu is not None)
        self.first_guest_slot = self.first_remote
        self._remote: RemoteProxy | None = None
        if options.remote is not None:
            self._remote = RemoteProxy(options.remote, self.first_remote, most)
            self.first_guest_slot += LANES
        self._membership: Membership | None = None
        if options.sharing_offer is not None:
            self._membership = Membership(options.sharing_offer)
        affinity = "off" if options.pool is not None else options.cpu_affinity
        self._cores = lease(affinity, options.workers, others=int(options.gpu is not None))
        self._borrowed: BorrowedWorkers | None = None
        self._binding: PoolBinding | None = None
        self._set: WorkerSet | None = None

    # ---- the queue -----------------------------------------------------------------------------

    @property
    def guest_slots(self) -> int:
        """Records that the queue has for workers of other ranks."""
        return 0 if self._membership is None else GUEST_SLOTS

    @property
    def shareable(self) -> int:
        """How many of the loader's workers may be shared with other ranks."""
        return 0 if self._membership is None else self.most

    @property
    def event_fd(self) -> int:
        """Descriptor of the event that wakes the global manager, -1 without one."""
        return -1 if self._membership is None else self._membership.event_fd

    def start(
        self, queue: _native.ManagerQueue, control_fd: int, data_fd: int, start: StartWorker
    ) -> None:
        """Starts the processes, and offers the queue to other ranks."""
        self._queue = queue
        self._started = time.monotonic()
        self._fds = control_fd, data_fd
        self._start = start
        if self._membership is not None:
            self._borrowed = BorrowedWorkers(queue, self._membership)
        if self._options.pool is not None:
            fds = {"control_fd": control_fd, "data_fd": data_fd}
            background = self._options.background
            self._binding = PoolBinding(self._options.pool, queue, fds, background)
        # Through no strong reference: a cycle would keep the batches' memory until it is found.
        launch = weakref.WeakMethod(self._launch)

        def start_one(number: int, message_fd: int) -> Process:
            method = launch()
            assert method is not None
            return method(number, message_fd)

        self._set = WorkerSet(self.count, start_one)
        if self._binding is not None:
            self._binding.workers = self._set
        if self._remote is not None:
            self._remote.start(queue, control_fd, data_fd)
        if self._membership is not None:
            self._membership.join(control_fd, data_fd)

    def _launch(self, number: int, message_fd: int) -> Process:
        connection = WorkerConnection(
            number,
            self.count,
            *self._fds,
            message_fd,
            self.event_fd,
            self._cores.of(number),
            self._binding,
        )
        return self._start(connection)

    def resize(self, count: int) -> Iterator[Death]:
        """Has ``count`` processes from now on; yields those that are ended, then starts more."""
        yield from self._workers.retire(count)
        for number in range(len(self._workers.workers), count):
            self._workers.add(number)
        self.count = count

    @property
    def _workers(self) -> WorkerSet:
        assert self._set is not None
        return self._set

    # ---- while the manager waits ---------------------------------------------------------------

    def call(self) -> None:
        """Has a pool's workers serve this loader: there is work."""
        if self._binding is not None:
            self._binding.request_workers()

    def published(self) -> None:
        """Has a pool's workers look for what was published, where they would not."""
        if self._binding is not None:
            self._binding.published()

    def expect(self) -> None:
        """Has a pool's workers serve this loader, which waits for a batch."""
        if self._binding is not None:
            self._binding.waits()

    def handle(self, handle: Handle) -> None:
        """Calls ``handle`` with each of their messages that has arrived; see ``Receiver``."""
        if self._set is not None:
            self._set.handle(handle)
        if self._remote is not None:
            self._remote.handle(handle)

    def sleep(self, seen: int, seconds: float) -> None:
        """Waits until the queue's done word is no longer ``seen``, or a message goes on."""
        if self._binding is not None:
            self._binding.drain_others()
        receiver = self._workers.unfinished_message()
        if receiver is not None:
            receiver.wait(seconds)
        else:
            self._queue.sleep(seen, seconds)

    def look(
        self,
        handle: Handle,
        hopeless: Callable[[], list[tuple[int, int]]] = list,
        forget: Callable[[int], None] = lambda worker: None,
    ) -> Iterator[LostTinyBatch]:
        """Replaces the dead and yields what they had claimed, which is in the queue again.

        If it raises, the next call finds the same deaths, as far as they were not dealt with.

        Args:
            handle: gets what they reported before they died.
            hopeless: returns which tiny-batches, with their sequence, nobody is to do again if
                their worker has died.
            forget: drops the reports about tiny-batches that a dead worker still holds: who does
                them again reports again.
        """
        for death in self._workers.deaths():
            death.receiver.handle(handle)
            forget(death.number)
            lost = self._queue.take_back(death.number, hopeless() if death.is_accident else [])
            if not death.is_accident:
                self._workers.restart(death)
                continue
            pid, manner = death.pid, death.manner
            yield from (
                LostTinyBatch(held.sequence, held.tiny_batch, pid, manner, held.given_up)
                for held in lost
            )
            if self._options.passes is not None:
                self._options.passes.check(death, was_held=bool(lost))
            announced = self._queue.worker(death.number).pid == death.pid
            self._workers.replace(death, fruitful=bool(lost) or announced or death.at_work)
        if self._remote is not None:
            self._remote.look(handle)
        if self._borrowed is not None:
            for guest in self._borrowed.collect_lost(hopeless):
                held, manner = guest.lost, "of another rank died"
                yield LostTinyBatch(
                    held.sequence, held.tiny_batch, guest.pid, manner, held.given_up
                )

    def local_records(self) -> Iterator[tuple[int, _native.WorkerSnapshot]]:
        """Yields the CPU workers on this machine, by number: those of other ranks, too."""
        for number, record in enumerate(self._queue.workers()):
            if number < self.count or number >= self.first_guest_slot:
                yield number, record

    def kill(self, number: int, pid: int, why: str) -> None:
        """Kills one of the local workers; ``why`` completes "worker ...", for who looks after it.

        One of another rank is replaced by that.
        """
        if number < self.first_guest_slot:
            self._workers.kill(number, why)
        elif self._borrowed is not None:
            self._borrowed.kill(number, pid)
            log.warning("worker (pid %d) of another rank %s; it is killed", pid, why)

    def member_view(self) -> _native.MemberView | None:
        """Returns the queue as the global manager sees it, ``None`` where there is none."""
        return None if self._membership is None else _native.MemberView(*self._fds)

    # ---- what they have done -------------------------------------------------------------------

    def totals(self, memory: MemoryTotals, in_flight: int) -> WorkerTotals:
        """Returns what the workers have counted, with what is known of mini-batches."""
        everyone = self._queue.workers()
        workers = list(self._stats_of(everyone))
        # What a GPU worker or machines elsewhere have done says nothing of these CPU workers.
        records = [*everyone[: self.most], *everyone[self.first_guest_slot :]]
        user_code = self._options.worker_kind == "python"
        restarts = self.restarts.total()
        return totals_of(records, workers, restarts, memory, in_flight, self.count, user_code)

    def _stats_of(self, records: list[_native.WorkerSnapshot]) -> Iterator[WorkerStats]:
        elapsed = max(time.monotonic() - self._started, 1e-9)
        for number, record in enumerate(records):
            if self.count <= number < self.most or not (record.pid or record.samples):
                continue  # there is none, or nobody has come
            kind: AnyWorkerKind = self._options.worker_kind
            if number >= self.first_guest_slot:
                kind = "borrowed"
            elif number >= self.first_remote:
                kind = "remote"
            elif number >= self.most:
                kind = "gpu"
            yield stats_of(number, record, kind, elapsed, self.restarts[number])

    @property
    def restarts(self) -> Counter[int]:
        """How often workers were replaced, by number."""
        return self._set.restarts if self._set is not None else Counter()

    @property
    def processes(self) -> list[Process]:
        """The loader's processes."""
        own = [worker.process for worker in self._set.workers] if self._set is not None else []
        return own if self._remote is None else [*own, *self._remote.processes]

    @property
    def pool_is_closed(self) -> bool:
        """Whether they were a pool's, which has ended."""
        return self._binding is not None and self._binding.pool_is_closed

    def report(self, in_flight: InFlight) -> str:
        """Returns what each worker is at, in words."""
        missing = range(self.count, self.most)
        workers = [
            (n, worker) for n, worker in enumerate(self._queue.workers()) if n not in missing
        ]
        elsewhere: Container[int] = ()
        if self._binding is not None:
            elsewhere = self._binding.busy_elsewhere(range(self.count))
        name, first_guest_slot = self._options.name, self.first_guest_slot
        now = time.monotonic()
        return worker_report(workers, in_flight, name, now, first_guest_slot, elsewhere)

    # ---- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the processes, after the queue was stopped."""
        with ExitStack() as steps:  # each is taken, whatever one before it raises; the last first
            steps.callback(self._cores.close)
            if self._set is not None:
                steps.callback(self._set.end)
            if self._remote is not None:
                steps.callback(self._remote.end)
            if self._binding is not None:
                steps.callback(self._binding.close)
            if self._membership is not None:
                steps.callback(self._membership.close)
