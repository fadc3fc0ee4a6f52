"""A job's workers on the queue of its group."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fusionloader import _native
from fusionloader.engine.manager.options import ManagerOptions, StartWorker, WorkerConnection
from fusionloader.observe.statistics.worker_totals import WorkerTotals, sum_records, worker_stats
from fusionloader.sharing.jobs.membership import GroupMembership, end_at_once
from fusionloader.system.cpus import lease
from fusionloader.system.processes import Process
from fusionloader.workers.worker_set import WorkerSet, calls_weakly


class GroupWorkers:
    """Starts a job's workers, replaces those that die, and ends them.

    Workers report to the coordinator. When one dies, the coordinator takes back its claims, and
    only then is its number used again.

    Attributes:
        count: number of workers that should run.
    """

    def __init__(
        self, options: ManagerOptions, membership: GroupMembership, start: StartWorker
    ) -> None:
        self._kind = options.worker_kind
        self._connection = membership.connection
        self._numbers = membership.workers
        self._fds = membership.control_fd, membership.data_fd
        self._queue = _native.ManagerQueue.attach(*self._fds)
        self._start = start
        self._started = time.monotonic()
        self._cores = lease(options.cpu_affinity, options.workers, others=0)
        self.count = options.workers
        first, hand_over = self._numbers.start, self._connection.register_worker
        self._set = WorkerSet(0, calls_weakly(self._launch), first, hand_over)
        # The records may hold counts of earlier workers with these numbers.
        self._before = WorkerTotals()
        self._before = self.totals()
        membership.run_workers(self._set)
        try:
            self._start_missing()
        except BaseException:
            self.end()
            raise

    def _start_missing(self) -> None:
        """Starts workers until there are ``count``, also those that could not start before."""
        there = {worker.number for worker in self._set.workers}
        for number in self._numbers[: self.count]:
            if number not in there:
                self._set.add(number)
        self._set.workers.sort(key=lambda worker: worker.number)

    def _launch(self, number: int, message_fd: int) -> Process:
        cpus = self._cores.cpus(number - self._numbers.start)
        connection = WorkerConnection(
            number, self.count, *self._fds, message_fd, -1, cpus, is_staged=True
        )
        return self._start(connection)

    def look(self) -> None:
        """Replaces dead workers; checks every 0.02 s at most."""
        for death in self._set.deaths():
            self._connection.recover(death.number)
            if death.number not in self._numbers[: self.count]:  # it was ended
                self._set.drop(death)
                continue
            announced = self._queue.worker(death.number).pid == death.pid
            self._set.replace(death, fruitful=announced)
        if len(self._set.workers) < self.count:
            self._start_missing()

    def local_records(self) -> Iterator[tuple[int, _native.WorkerSnapshot]]:
        """Yields the number and the record of each of this job's workers."""
        first = self._numbers.start
        yield from enumerate(self._queue.workers(first, self.count), first)

    def kill(self, number: int, pid: int, why: str) -> None:
        """Kills a worker, which ``look`` then replaces; ``why`` completes "worker ..."."""
        self._set.kill(number, why)

    def resize(self, count: int) -> None:
        """Changes the number of workers, at most to as many as the job has numbers for."""
        self.count = min(count, len(self._numbers))
        for death in self._set.retire(self.count):
            self._connection.recover(death.number)
        self._start_missing()

    @property
    def processes(self) -> list[Process]:
        return [worker.process for worker in self._set.workers]

    def totals(self, **memory: int) -> WorkerTotals:
        """Returns what the workers have counted; ``memory``: further fields of the totals."""
        first = self._numbers.start
        elapsed = max(time.monotonic() - self._started, 1e-9)
        records = self._queue.workers(first, len(self._numbers))
        workers = [
            worker_stats(place, record, self._kind, elapsed, self._set.restarts[first + place])
            for place, record in enumerate(records[: self.count])
        ]
        restarts = self._set.restarts.total()
        counted = sum_records(
            records,
            workers,
            worker_restarts=restarts,
            wanted=self.count,
            user_code=self._kind == "python",
            **memory,
        )
        return counted - self._before

    def end(self) -> None:
        """Kills the processes; the coordinator takes back their claims."""
        try:
            end_at_once(self._set)
        finally:
            self._cores.close()
