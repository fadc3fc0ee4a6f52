"""A loader's binding to a pool: its number there, and the pool's workers as its processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from fusionloader.engine.manager.participant import Handle, Hub, Participant
from fusionloader.engine.manager.publications import Publications
from fusionloader.sharing.pool.pool_processes import Payload, PoolProcesses, WorkerHandle
from fusionloader.system.processes import Process
from fusionloader.workers.worker_set import WorkerSet

_POLL_SECONDS = 0.002


class PoolBinding(Participant):
    """A loader's queue, registered with a pool.

    Attributes:
        queue: the loader's queue.
        background: whether it gets workers only while other loaders have nothing to claim.
        has_requested: whether a batch was waited for, so that the loader answers its workers.
        closed: whether the queue was stopped.
        workers: the loader's worker set, ``None`` before it is made and after ``end``.
        number: the loader's, in the pool; 0 before ``start``.
    """

    def __init__(self, pool: PoolProcesses, background: bool = False) -> None:
        self._pool = pool
        self.background = background
        self.has_requested = False
        self.closed = False
        self.workers: WorkerSet | None = None
        self.number = 0

    def start(self, hub: Hub) -> None:
        """Registers the queue with the pool."""
        self.queue = hub.queue
        self._fds = {"control_fd": hub.control_fd, "data_fd": hub.data_fd}
        self.number = self._pool.register(self)

    def workers_started(self, workers: WorkerSet) -> None:
        """Keeps the workers, whose messages are read while other loaders wait."""
        self.workers = workers

    def attach(self, worker: int, fds: dict[str, int], payload: Payload) -> Process:
        """Attaches a worker of the pool to this loader; returns it as a process of the loader."""
        handle = self._pool.attach(worker, self, payload, {**self._fds, **fds})
        return PoolProcess(handle, worker, self)

    @property
    def has_ended(self) -> bool:
        """Whether the pool was closed, so that it has no workers and starts none."""
        return self._pool.closed

    def publishing(self, slot: int) -> None:
        """Assigns all workers to this loader, unless it is a background one."""
        if not self.background:
            self._pool.assign_all(self.number)

    def published(self) -> None:
        """Wakes workers for a background loader, whose queue none of them sleeps on."""
        if self.background:
            self._pool.wake()

    def asked(self) -> None:
        """Raises ``RuntimeError`` if the pool was closed, even if the next batch is done."""
        if not self.closed:
            self._pool.check_open()

    def look(self, handle: Handle, publications: Publications[Any]) -> None:
        """Requests workers again, since a loader in another thread may have them now."""
        if not self.background:
            self._pool.assign_all(self.number)
            return
        first, self.has_requested = not self.has_requested, True
        self._pool.serve_in_background(self, first)

    def waiting(self) -> None:
        """Reads the other loaders' pipes, so that no worker blocks on one that is not iterated."""
        for binding in self._pool.others(self.number):
            binding.drain()

    def drain(self) -> None:
        """Reads the workers' messages to this loader and buffers them."""
        workers = self.workers  # once: another thread may set it to None
        if workers is not None:
            workers.drain()

    def busy_elsewhere(self, workers: Iterable[int]) -> set[int]:
        others = self._pool.others(self.number)
        return {n for n in workers if any(binding.is_busy(n) for binding in others)}

    def is_busy(self, worker: int) -> bool:
        """Whether a worker is processing a tiny-batch of this loader."""
        return self.queue.worker(worker).sequence is not None

    def end(self) -> None:
        """Takes the loader off the pool: its workers leave after their current tiny-batch."""
        self.closed = True
        self.workers = None
        if self.number:
            self._pool.unregister(self.number)


class PoolProcess:
    """A pool's worker as a process of one loader.

    It counts as ended when it has finished with the loader, although the process still runs.
    """

    def __init__(self, handle: WorkerHandle, worker: int, binding: PoolBinding) -> None:
        self._handle = handle
        self._process = handle.process
        self._worker = worker
        self._binding = binding

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    @property
    def ended_by_pool(self) -> bool:
        """Whether the pool ended it, to start another process under its number."""
        return self._handle.ended_by_pool

    @property
    def was_prepared(self) -> bool:
        """Whether it died while working, for any loader, and not while preparing for one."""
        return self._handle.was_prepared

    def is_alive(self) -> bool:
        """Whether it runs and has not finished with the loader."""
        if self._binding.closed and not self._binding.is_busy(self._worker):
            return False
        return self._process.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended or finished with the loader, at most ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(_POLL_SECONDS)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL, also where it is working for another loader: the pool replaces it."""
        with contextlib.suppress(OSError):
            self._process.kill()
