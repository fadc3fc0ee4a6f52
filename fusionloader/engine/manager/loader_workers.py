"""The CPU workers of a local manager, and the participants beside them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from fusionloader import _native
from fusionloader.engine.manager.in_flight import InFlight
from fusionloader.engine.manager.options import ManagerOptions, StartWorker, WorkerConnection
from fusionloader.engine.manager.participant import Handle, Hub, Participant
from fusionloader.engine.manager.publications import Publications
from fusionloader.engine.manager.stalls import worker_report
from fusionloader.observe.statistics.snapshot import WorkerStats
from fusionloader.observe.statistics.worker_totals import WorkerTotals, sum_records, worker_stats
from fusionloader.system.cpus import lease
from fusionloader.system.processes import Process
from fusionloader.workers.worker_set import Death, WorkerSet, calls_weakly


class LoaderWorkers:
    """Starts, replaces and ends the workers of a local manager.

    Worker numbers in the queue: first the loader's workers, then those of participants, and guests
    (workers that belong to another process) last.

    Attributes:
        count: current number of the loader's workers.
        most: highest later number of the loader's workers.
        participants: participants beside the workers.
        first_guest_slot: number of the first guest.
        guest_slots: highest number of guests.
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
        """Descriptor of the event by which workers wake a participant, -1 without one."""
        return max((each.event_fd for each in self.participants), default=-1)

    @property
    def shareable(self) -> int:
        """Number of the loader's workers that may be shared with other ranks."""
        return self.most if self.guest_slots else 0

    def start(self, hub: Hub, start: StartWorker) -> None:
        self._queue = hub.queue
        self._started = time.monotonic()
        self._fds = hub.control_fd, hub.data_fd
        self._start = start
        for each in self.participants:
            each.start(hub)
        self._set = WorkerSet(self.count, calls_weakly(self._launch))
        for each in self.participants:
            each.workers_started(self._set)

    def _launch(self, number: int, message_fd: int) -> Process:
        fds = (*self._fds, message_fd, self.event_fd)
        return self._start(WorkerConnection(number, self.count, *fds, self._cores.cpus(number)))

    def resize(self, count: int) -> Iterator[Death]:
        """Changes the number of processes: yields those that it ends, or starts more."""
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
        """Calls ``handle`` with each message that has arrived, see ``Receiver.handle``."""
        if self._set is not None:
            self._set.handle(handle)
        for each in self.participants:
            each.receive(handle)

    def sleep(self, seen: int, seconds: float) -> None:
        """Waits until the queue's done word differs from ``seen``, or a message continues."""
        for each in self.participants:
            each.waiting()
            seconds = min(seconds, each.longest_sleep)
        receiver = self._workers.unfinished_message()
        if receiver is not None:
            receiver.wait(seconds)
        else:
            self._queue.sleep(seen, seconds)

    def look(self, handle: Handle, publications: Publications[Any]) -> None:
        """Replaces dead workers, and has others make what they held.

        If this raises, the next call finds the deaths that were not handled yet.

        Args:
            handle: called with the last reports of the dead workers.
            publications: what workers may hold.
        """
        for death in self._workers.deaths():
            death.receiver.handle(handle)
            was_held = publications.give_back(
                death.number, death.pid, death.manner, death.is_accident
            )
            if not death.is_accident:
                self._workers.restart(death)
                continue
            if self._options.passes is not None:
                self._options.passes.check(death, was_held)
            # A worker writes its pid into the queue when it is ready. Deaths before that are failed
            # starts, of which three in a row are an error.
            announced = self._queue.worker(death.number).pid == death.pid
            self._workers.replace(death, fruitful=was_held or announced or death.at_work)
        for each in self.participants:
            each.look(handle, publications)

    def local_records(self) -> Iterator[tuple[int, _native.WorkerSnapshot]]:
        """Yields numbers and records of the CPU workers on this machine, with the guests."""
        for number, record in enumerate(self._queue.workers()):
            if number < self.count or number >= self.first_guest_slot:
                yield number, record

    def kill(self, number: int, pid: int, why: str) -> None:
        """Kills a local worker, which its owner then replaces. ``why`` completes "worker ..."."""
        participant = self.find_participant(number)
        if participant is None:
            self._workers.kill(number, why)
        else:
            participant.kill(number, pid, why)

    def find_participant(self, number: int) -> Participant | None:
        """Returns the participant that a worker number belongs to; ``None`` for the loader's."""
        for each in self.participants:
            if each.first <= number < each.first + each.places:
                return each
        return None

    # ---- counters ------------------------------------------------------------------------------

    def totals(self, **memory: int | float) -> WorkerTotals:
        """Returns the workers' counters; ``memory`` sets other fields of ``WorkerTotals``."""
        everyone = self._queue.workers()
        workers = list(self._worker_stats(everyone))
        # Sums are of CPU workers of this machine: neither GPU workers nor other machines.
        records = [*everyone[: self.most], *everyone[self.first_guest_slot :]]
        return sum_records(
            records,
            workers,
            worker_restarts=self.restarts.total(),
            wanted=self.count,
            user_code=self._options.worker_kind == "python",
            **memory,
        )

    def _worker_stats(self, records: list[_native.WorkerSnapshot]) -> Iterator[WorkerStats]:
        elapsed = max(time.monotonic() - self._started, 1e-9)
        for number, record in enumerate(records):
            if self.count <= number < self.most or not (record.pid or record.samples):
                continue  # no worker has used this place
            participant = self.find_participant(number)
            kind = self._options.worker_kind if participant is None else participant.kind
            yield worker_stats(number, record, kind, elapsed, self.restarts[number])

    @property
    def restarts(self) -> Counter[int]:
        return self._set.restarts if self._set is not None else Counter()

    @property
    def processes(self) -> list[Process]:
        own = [worker.process for worker in self._set.workers] if self._set is not None else []
        return [*own, *(process for each in self.participants for process in each.processes)]

    def report(self, in_flight: InFlight) -> str:
        missing = range(self.count, self.most)
        workers = [
            (n, worker) for n, worker in enumerate(self._queue.workers()) if n not in missing
        ]
        elsewhere = {
            n for each in self.participants for n in each.busy_elsewhere(range(self.count))
        }
        now = time.monotonic()
        return worker_report(workers, in_flight, now, self.first_guest_slot, elsewhere)

    # ---- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the processes, after the queue was stopped."""
        with ExitStack() as steps:  # all run, in reverse order, even if one raises
            steps.callback(self._cores.close)
            if self._set is not None:
                steps.callback(self._set.end)
            for each in self.participants:
                steps.callback(each.end)
