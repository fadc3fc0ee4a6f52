"""A loader among those that a pool serves, and the pool's workers as that loader sees them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fusionloader import _native
from fusionloader.pool.pool_processes import Payload, PoolProcesses, WorkerHandle
from fusionloader.workers.processes import Process

if TYPE_CHECKING:
    from fusionloader.workers.worker_set import WorkerSet

_LOOK_SECONDS = 0.002


class PoolBinding:
    """A loader's queue among those that a pool serves.

    ``workers`` are the loader's, once it has them.
    """

    def __init__(
        self, pool: PoolProcesses, queue: _native.ManagerQueue, fds: dict[str, int]
    ) -> None:
        """``fds`` are those of the queue: control block and slots."""
        self._pool = pool
        self._fds = fds
        self.queue = queue
        self.closed = False
        self.workers: WorkerSet | None = None
        self._number = pool.enter(self)

    def start(self, worker: int, fds: dict[str, int], payload: Payload) -> Process:
        """Has a worker of the pool work for this loader, as a process of the loader's own would."""
        handle = self._pool.assign(worker, self._number, payload, {**self._fds, **fds})
        return PoolProcess(handle, worker, self)

    @property
    def pool_is_closed(self) -> bool:
        """Whether there are no workers any more, nor will be."""
        return self._pool.closed

    def call(self) -> None:
        """Has the workers come here: somebody waits, or may soon; see ``PoolProcesses.call``."""
        self._pool.call(self._number)

    def drain_others(self) -> None:
        """Keeps workers from waiting for a loader that nobody asks for anything."""
        for binding in self._pool.others(self._number):
            binding.drain()

    def drain(self) -> None:
        """Reads what the workers have written to this loader, for it to find."""
        workers = self.workers  # which another thread may take away
        if workers is not None:
            workers.drain()

    def elsewhere(self, workers: Iterable[int]) -> set[int]:
        """Returns which of the workers are at a tiny-batch of another loader."""
        others = self._pool.others(self._number)
        return {n for n in workers if any(binding.is_at_work(n) for binding in others)}

    def is_at_work(self, worker: int) -> bool:
        """Whether a worker is at a tiny-batch of this loader."""
        return self.queue.worker(worker).sequence is not None

    def close(self) -> None:
        """The queue was stopped: workers leave it when they have done what they are at."""
        self.closed = True
        self.workers = None
        self._pool.leave(self._number)


class PoolProcess:
    """A pool's worker as a process of one loader: it ends with that, although the process runs."""

    def __init__(self, handle: WorkerHandle, worker: int, binding: PoolBinding) -> None:
        self._handle = handle
        self._process = handle.process
        self._worker = worker
        self._binding = binding

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """Exit code of the process."""
        return self._process.exitcode

    @property
    def told_to_end(self) -> bool:
        """Whether its death is no accident: another process takes its binding."""
        return self._handle.told_to_end

    @property
    def was_prepared(self) -> bool:
        """Whether it died at its work, be it another loader's, and not while preparing for one."""
        return self._handle.was_prepared

    def is_alive(self) -> bool:
        """Whether it runs and has not done with the loader."""
        if self._binding.closed and not self._binding.is_at_work(self._worker):
            return False
        return self._process.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended or done with the loader, at most ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(_LOOK_SECONDS)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL, whatever else the process is at: others are started for it."""
        with contextlib.suppress(OSError):
            self._process.kill()
