"""The CPU workers of a local manager, and the participants beside them."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from fusionloader import _native
from fusionloader.engine.manager.in_flight import InFlight
from fusionloader.engine.manager.options import ManagerOptions, StartWorker, WorkerConnection
from fusionloader.engine.manager.participant import (
    Handle,
    Hopeless,
    Hub,
    LostTinyBatch,
    Participant,
)
from fusionloader.engine.manager.worker_report import worker_report
from fusionloader.observe.statistics.snapshot import WorkerStats
from fusionloader.observe.statistics.worker_totals import WorkerTotals, sum_records, worker_stats
from fusionloader.system.cpus import lease
from fusionloader.system.processes import Process
from fusionloader.workers.worker_set import Death, WorkerSet


class LoaderWorkers:
    """Starts the workers, finds the dead among them, replaces them, and ends them.

    Numbers in the queue are the loader's workers, then those of the participants, guests last.

    Attributes:
        count: how many there are to be.
        most: how many of the loader's there may ever be.
        participants: what takes part beside them.
        first_guest_slot: number of the first worker that belongs to another process.
        guest_slots: how many of these there may be.
    """

    def __init__(self, options: ManagerOptions, most: int) -> None:
        self._options = options
        self.most = most
        self.count = options.workers
        self.participants = options.participants
        self.first_guest_slot = most + self._places(are_guests=False)
        self.guest_slots = self._places(are_guests=True)
        number = most
        for each in sorted(self.participants, key=lambda each: each.are_guests):
            each.first, number = number, number + each.places
        others = sum(each.cores for each in self.participants)
        self._cores = lease(options.cpu_affinity, options.workers, others)
        self._set: WorkerSet | None = None

    def _places(self, are_guests: bool) -> int:
        return sum(each.places for each in self.participants if each.are_guests == are_guests)

    # ---- the queue -----------------------------------------------------------------------------

    @property
    def event_fd(self) -> int:
        """Descriptor of the event by which workers call for a participant, -1 without one."""
        return max((each.event_fd for each in self.participants), default=-1)

    @property
    def shareable(self) -> int:
        """How many of the loader's workers may be shared with other ranks."""
        return self.most if self.guest_slots else 0

    def start(self, hub: Hub, start: StartWorker) -> None:
        """Starts the processes, and the participants."""
        self._queue = hub.queue
        self._started = time.monotonic()
        self._fds = hub.control_fd, hub.data_fd
        self._start = start
        for each in self.participants:
            each.start(hub)
        # Through no strong reference: a cycle would keep the batches' memory until it is found.
        launch = weakref.WeakMethod(self._launch)

        def start_one(number: int, message_fd: int) -> Process:
            method = launch()
            assert method is not None
            return method(number, message_fd)

        self._set = WorkerSet(self.count, start_one)
        for each in self.participants:
            each.workers_started(self._set)

    def _launch(self, number: int, message_fd: int) -> Process:
        fds = (*self._fds, message_fd, self.event_fd)
        return self._start(WorkerConnection(number, self.count, *fds, self._cores.of(number)))

    def resize(self, count: int) -> Iterator[Death]:
        """Has ``count`` processes from now on; yields those that are ended, then starts more."""
        yield from self._workers.retire(count)
        for number in range(len(self._workers.workers), count):
            self._workers.add(number)
        self.count = count
        for each in self.participants:
            each.resized(count)

    @property
    def _workers(self) -> WorkerSet:
        assert self._set is not None
        return self._set

    # ---- while the manager waits ---------------------------------------------------------------

    def handle(self, handle: Handle) -> None:
        """Calls ``handle`` with each of their messages that has arrived; see ``Receiver``."""
        if self._set is not None:
            self._set.handle(handle)
        for each in self.participants:
            each.receive(handle)

    def sleep(self, seen: int, seconds: float) -> None:
        """Waits until the queue's done word is no longer ``seen``, or a message goes on."""
        for each in self.participants:
            each.waiting()
            seconds = min(seconds, each.longest_sleep)
        receiver = self._workers.unfinished_message()
        if receiver is not None:
            receiver.wait(seconds)
        else:
            self._queue.sleep(seen, seconds)

    def look(
        self,
        handle: Handle,
        hopeless: Hopeless = list,
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
        for each in self.participants:
            yield from each.look(handle, hopeless)

    def local_records(self) -> Iterator[tuple[int, _native.WorkerSnapshot]]:
        """Yields the CPU workers on this machine, by number: the guests, too."""
        for number, record in enumerate(self._queue.workers()):
            if number < self.count or number >= self.first_guest_slot:
                yield number, record

    def kill(self, number: int, pid: int, why: str) -> None:
        """Kills one of the local workers; ``why`` completes "worker ...".

        Whose worker it is replaces it.
        """
        participant = self.participant_of(number)
        if participant is None:
            self._workers.kill(number, why)
        else:
            participant.kill(number, pid, why)

    def participant_of(self, number: int) -> Participant | None:
        """Returns whose worker has a number; ``None`` for one of the loader's own."""
        for each in self.participants:
            if each.first <= number < each.first + each.places:
                return each
        return None

    # ---- what they have done -------------------------------------------------------------------

    def totals(self, **memory: int | float) -> WorkerTotals:
        """Returns what the workers have counted; ``memory``: further fields of the totals."""
        everyone = self._queue.workers()
        workers = list(self._stats_of(everyone))
        # What a GPU worker or machines elsewhere have done says nothing of these CPU workers.
        records = [*everyone[: self.most], *everyone[self.first_guest_slot :]]
        return sum_records(
            records,
            workers,
            worker_restarts=self.restarts.total(),
            wanted=self.count,
            user_code=self._options.worker_kind == "python",
            **memory,
        )

    def _stats_of(self, records: list[_native.WorkerSnapshot]) -> Iterator[WorkerStats]:
        elapsed = max(time.monotonic() - self._started, 1e-9)
        for number, record in enumerate(records):
            if self.count <= number < self.most or not (record.pid or record.samples):
                continue  # there is none, or nobody has come
            participant = self.participant_of(number)
            kind = self._options.worker_kind if participant is None else participant.kind
            yield worker_stats(number, record, kind, elapsed, self.restarts[number])

    @property
    def restarts(self) -> Counter[int]:
        """How often workers were replaced, by number."""
        return self._set.restarts if self._set is not None else Counter()

    @property
    def processes(self) -> list[Process]:
        """The processes of the loader and of the participants."""
        own = [worker.process for worker in self._set.workers] if self._set is not None else []
        return [*own, *(process for each in self.participants for process in each.processes)]

    def report(self, in_flight: InFlight) -> str:
        """Returns what each worker is at, in words."""
        missing = range(self.count, self.most)
        workers = [
            (n, worker) for n, worker in enumerate(self._queue.workers()) if n not in missing
        ]
        elsewhere = {
            n for each in self.participants for n in each.busy_elsewhere(range(self.count))
        }
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
            for each in self.participants:
                steps.callback(each.end)
