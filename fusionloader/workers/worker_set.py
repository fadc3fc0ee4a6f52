"""Starts the workers of one loader, watches and replaces them, and ends them."""

from __future__ import annotations

import logging
import os
import signal
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fusionloader.system import processes
from fusionloader.system.finalizers import refuse_at_exit
from fusionloader.system.limits.free_memory import OutOfMemoryKills
from fusionloader.system.processes import Process
from fusionloader.workers import messages

log = logging.getLogger("fusionloader.workers")

_CHECK_SECONDS = 0.02  # between checks for dead workers
_FRUITLESS_DEATHS = 3  # deaths in a row, before a claim, that are an error
_PATIENCE_SECONDS = 5.0  # time for a worker to end

StartWorker = Callable[[int, int], Process]
"""Starts a worker: its number, and the descriptor to which it sends messages."""

HandOver = Callable[[int, int], None]
"""Gives another process the receiving end of a worker's pipe: number and descriptor."""


def calls_weakly(method: StartWorker) -> StartWorker:
    """Returns a function that calls a method without a reference to its object.

    A cycle would keep the memory of batches until the garbage collector runs.
    """
    reference = weakref.WeakMethod(method)

    def call(number: int, message_fd: int) -> Process:
        found = reference()
        assert found is not None
        return found(number, message_fd)

    return call


@dataclass(slots=True)
class RunningWorker:
    """A running worker."""

    number: int
    receiver: messages.Receiver
    process: Process = field(init=False)


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a worker process.

    Attributes:
        number: the worker's number.
        pid: process id.
        manner: how the process ended; completes "worker ...".
        receiver: receiver of its messages, some of which may not be handled yet.
        is_accident: ``False`` if its pool ended it to start another process.
        at_work: whether it had begun to work, for this loader or another one of its pool.
    """

    number: int
    pid: int | None
    manner: str
    receiver: messages.Receiver
    is_accident: bool = True
    at_work: bool = False


class WorkerSet:
    """Workers with consecutive numbers; a dead worker is replaced under its number."""

    def __init__(
        self, count: int, start: StartWorker, first: int = 0, hand_over: HandOver | None = None
    ) -> None:
        """Starts ``count`` workers, numbered from ``first``.

        With ``hand_over`` another process receives the messages of each worker; it is called before
        the worker is started.
        """
        self._start, self._hand_over = start, hand_over
        self._fruitless_deaths = 0
        self._killed_for_memory = OutOfMemoryKills()
        self._killed: dict[int | None, str] = {}  # why workers were killed, by process id
        self._checked = time.monotonic()
        self.restarts: Counter[int] = Counter()  # by number
        self.workers: list[RunningWorker] = []
        try:
            for number in range(first, first + count):
                self.add(number)
        except BaseException:
            self.end()
            raise

    def _launch(self, number: int) -> RunningWorker:
        refuse_at_exit()
        receiver, process = messages.Receiver(-1), None
        try:
            read, write = os.pipe()
            receiver.fd = read  # which the receiver closes once, whatever raises from here on
            try:
                os.set_blocking(read, False)
                if self._hand_over is not None:
                    self._hand_over(number, read)
                    receiver.close()
                worker = RunningWorker(number, receiver)
                worker.process = process = self._start(number, write)
            finally:
                os.close(write)
        except BaseException:
            receiver.close()
            if process is not None:  # a replacement would have the same number
                process.kill()
                process.join(_PATIENCE_SECONDS)
            raise
        return worker

    def handle(self, handle: Callable[[messages.Message], None]) -> None:
        """Calls ``handle`` with each message that has arrived; see ``Receiver.handle``."""
        for worker in self.workers:
            worker.receiver.handle(handle)

    def unfinished_message(self) -> messages.Receiver | None:
        """Returns the receiver of a message that has arrived in part, if any."""
        for worker in self.workers:
            if worker.receiver.partial:
                return worker.receiver
        return None

    def deaths(self) -> list[Death]:
        """Returns the workers that have died since the last call; checks every 0.02 s at most."""
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return []
        self._checked = now
        return [
            Death(
                worker.number,
                worker.process.pid,
                self._manner(worker.process),
                worker.receiver,
                not getattr(worker.process, "ended_by_pool", False),
                getattr(worker.process, "was_prepared", False),
            )
            for worker in self.workers
            if not worker.process.is_alive()
        ]

    def _manner(self, process: Process) -> str:
        """Returns how a worker ended, and for a killed one whether memory was short."""
        exitcode = process.exitcode
        if exitcode == -signal.SIGKILL and process.pid in self._killed:
            return f"{self._killed[process.pid]} and was killed"
        manner = processes.describe_exit(exitcode)
        why = self._killed_for_memory.explain() if exitcode == -signal.SIGKILL else ""
        return f"{manner} ({why})" if why else manner

    def kill(self, number: int, why: str) -> None:
        """Kills a worker; ``deaths`` reports it, with ``why`` as its manner."""
        for worker in self.workers:
            if worker.number == number:
                self._killed[worker.process.pid] = why
                worker.process.kill()

    def replace(self, death: Death, fruitful: bool) -> None:
        """Starts a worker under the number of a dead one, unless several failed to start.

        Args:
            death: the dead worker.
            fruitful: whether it had begun to work.

        Raises:
            RuntimeError: three workers in a row died before they began to work, or Python exits.
        """
        refuse_at_exit()
        fruitless_deaths = 0 if fruitful else self._fruitless_deaths + 1
        if fruitless_deaths >= _FRUITLESS_DEATHS:
            raise RuntimeError(
                f"DataLoader worker (pid(s) {death.pid}) exited unexpectedly: three in a row ended "
                f"before they asked for work (the last one {death.manner}). Until then they run "
                "worker_init_fn, and import what the dataset needs. None is started any more"
            )
        log.warning("worker %d (pid %s) %s; it is replaced", death.number, death.pid, death.manner)
        self.restart(death)
        self._fruitless_deaths = fruitless_deaths
        self.restarts[death.number] += 1

    def restart(self, death: Death) -> None:
        """Starts a worker under the number of a dead one.

        If the start raises, the dead worker stays in the list, and ``deaths`` returns it again.
        """
        place = self._place(death)
        self.workers[place] = self._launch(death.number)
        self._forget(death)

    def drop(self, death: Death) -> None:
        del self.workers[self._place(death)]
        self._forget(death)

    def _place(self, death: Death) -> int:
        return [worker.receiver for worker in self.workers].index(death.receiver)

    def _forget(self, death: Death) -> None:
        self._killed.pop(death.pid, None)
        death.receiver.close()

    def drain(self) -> None:
        """Empties all pipes into their buffers, so that no worker's write blocks."""
        for worker in self.workers:
            worker.receiver.drain()

    def retire(self, count: int) -> Iterator[Death]:
        """Ends the workers with the highest numbers until ``count`` are left.

        The caller has to handle the messages and take back the claims of each worker.

        Raises:
            RuntimeError: a killed worker has not ended.
        """
        for worker in self.workers[count:]:
            pid = worker.process.pid
            worker.process.kill()
            worker.process.join(_PATIENCE_SECONDS)
            if worker.process.is_alive():
                raise RuntimeError(
                    f"DataLoader worker (pid {pid}) has not ended {_PATIENCE_SECONDS:g} s after it "
                    "was killed: it waits in the kernel, as for a disk or a file system that does "
                    "not answer. Its samples cannot be given to another worker"
                )
            death = Death(worker.number, pid, "was ended", worker.receiver)
            yield death
            self.drop(death)

    def add(self, number: int) -> None:
        """Starts one more worker, under the next number."""
        # No call in between, in which Ctrl-C could lose a worker that was started.
        self.workers += [self._launch(number)]

    def end(self) -> None:
        """Waits for the workers, after their queue was stopped, and kills those that do not end."""
        # A worker that is blocked on a full pipe does not see the stop.
        running = [worker.process for worker in self.workers]
        processes.end(running, _PATIENCE_SECONDS, meanwhile=self.drain)
        for worker in self.workers:
            worker.receiver.close()
