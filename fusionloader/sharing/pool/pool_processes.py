"""The processes of a ``WorkerPool``, and the loaders that they are assigned to.

Workers are assigned as between ranks, by a word in a control block
(csrc/queue/worker_sharing.hpp). Like borrowed workers, they receive a loader's descriptors through
a socket. No global manager decides: the loader whose next batch is requested gets all workers,
unless it is a background loader. Background loaders are never assigned workers; workers that find
no work elsewhere serve them.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
import weakref
from dataclasses import dataclass
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

import torch

from fusionloader import _native
from fusionloader.options.loader_options import WorkerPool
from fusionloader.sharing.pool import worker as pool_worker
from fusionloader.sharing.pool.worker import PoolWorkerConfig
from fusionloader.system import fd_messages, processes
from fusionloader.system.cpus import lease
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.finalizers import ExitFinalizer, Finalizer
from fusionloader.system.processes import BareProcess, Process, renewed_in_children
from fusionloader.system.shm import objects
from fusionloader.system.shm.descriptor import Descriptor

if TYPE_CHECKING:
    from fusionloader.sharing.pool.binding import PoolBinding

log = logging.getLogger("fusionloader.workers")

_PATIENCE_SECONDS = 5.0
# Two threads may iterate the first loaders of a pool.
_creation = renewed_in_children(threading.RLock())
_MOST_LOADERS = 0xFFFF  # their numbers have 16 bits in an assignment, and none is 0


class Payload:
    """What workers need for a loader: a pickle in shared memory, and descriptors.

    Attributes:
        user_code: whether only a process that multiprocessing has prepared can unpickle it.
        fds: the pickle's descriptor and the loader's.
    """

    def __init__(self, contents: object, fds: dict[str, int], user_code: bool) -> None:
        """Pickles ``contents``.

        Raises:
            PicklingError: they cannot be pickled.
        """
        self.user_code = user_code
        try:
            pickled = pickle.dumps(contents, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # locks raise RuntimeError, lambdas AttributeError
            raise PicklingError(str(error)) from error
        config_fd = objects.create(len(pickled), "config")
        Finalizer(self, os.close, config_fd)
        with open(config_fd, "wb", closefd=False) as file:
            file.write(pickled)
        self.fds = {"config_fd": config_fd, **fds}


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """A worker's process, and the socket through which loaders are sent to it.

    Attributes:
        process: the process.
        loaders: the pool's end of the socket.
        user_code: whether multiprocessing has prepared the process.
        queue: the pool's control block.
        worker: its number in the pool.
        ended_by_pool: whether the pool ended it, to start another one under its number.
    """

    process: Process
    loaders: socket.socket
    user_code: bool
    queue: _native.ManagerQueue
    worker: int
    ended_by_pool: bool = False
    _was_prepared: bool = False

    @property
    def was_prepared(self) -> bool:
        """Whether it had started and was not preparing for a loader when it was last seen."""
        announced = self.queue.worker(self.worker).pid
        return self._was_prepared or announced == self.process.pid

    def close(self) -> None:
        """Called before another process gets its number."""
        self._was_prepared = self.was_prepared
        self.loaders.close()


class PoolProcesses:
    """The processes: started when a loader first needs them, and again when they have died."""

    def __init__(self, workers: int, context: Any, cpu_affinity: str) -> None:
        self.workers = workers
        self._cores = lease(cpu_affinity, workers)
        self.closed = False
        self.pid = os.getpid()
        self._end: ExitFinalizer | None = None
        self._context = context if context is not None else torch.multiprocessing.get_context()
        self._lock = threading.RLock()  # finalizers may run in the middle of any statement
        self._handles: dict[int, WorkerHandle] = {}
        self._bindings: dict[int, weakref.ref[PoolBinding]] = {}
        self._last = 0
        self._assigned_to = 0
        self._control = objects.ControlBlock(workers, 1)
        self._queue = _native.ManagerQueue(self._control.fd, -1, workers, 1, 0, workers)
        self._member = _native.MemberView(self._control.fd, -1)

    # ---- loaders -------------------------------------------------------------------------------

    def register(self, binding: PoolBinding) -> int:
        """Returns a number for a loader, by which workers are assigned to it."""
        with self._lock:
            number = self._last % _MOST_LOADERS + 1
            while number in self._bindings:
                number = number % _MOST_LOADERS + 1
            self._last = number
            self._bindings[number] = weakref.ref(binding)
            return number

    def unregister(self, number: int) -> None:
        """Removes a loader that has ended."""
        with self._lock:
            self._bindings.pop(number, None)
            if self._assigned_to == number:
                self._assigned_to = 0
            self.wake()

    def assign_all(self, number: int) -> None:
        """Assigns all workers to a loader, unless they were assigned to it last.

        Raises:
            RuntimeError: the pool was closed.
        """
        self.check_open()
        if self._assigned_to == number:
            return
        with self._lock:
            self._assigned_to = 0  # an exception may come before all are
            for worker in list(self._handles):
                self._member.send(worker, 0, number, worker)
            self.wake()
            self._assigned_to = number

    def serve_in_background(self, binding: PoolBinding, first: bool) -> None:
        """Wakes workers for a background loader that waits; the first time, also informs them.

        Raises:
            RuntimeError: the pool was closed.
        """
        self.check_open()
        with self._lock:
            if first:
                for worker, handle in list(self._handles.items()):
                    self._send(handle, FdMessage({"requested": binding.number}))
                    self._member.send(worker, 0, self._assigned_to, worker)
            self.wake()

    def others(self, number: int) -> list[PoolBinding]:
        found = [binding() for other, binding in list(self._bindings.items()) if other != number]
        return [binding for binding in found if binding is not None]

    def check_open(self) -> None:
        """Raises ``RuntimeError`` if the pool was closed."""
        if self.closed:
            raise RuntimeError(
                "the WorkerPool was closed while an iterator was under way: iterate the loader anew"
            )

    def _drain(self) -> None:
        for binding in self.others(0):
            binding.drain()

    def wake(self) -> None:
        """Wakes workers wherever they sleep: on the pool's queue or on a loader's."""
        self._queue.wake_workers()
        for binding in self.others(0):
            binding.queue.wake_workers()

    # ---- processes -----------------------------------------------------------------------------

    def attach(
        self, worker: int, binding: PoolBinding, payload: Payload, fds: dict[str, int]
    ) -> WorkerHandle:
        """Attaches a worker to a loader as well; starts its process if there is none."""
        with self._lock:
            self.check_open()
            handle = self._handles.get(worker)
            if handle is not None and payload.user_code and not handle.user_code:
                self._end_bare()
                handle = None
            if handle is None or not handle.process.is_alive():
                handle = self._handles[worker] = self._start(worker, payload.user_code)
            all_fds = {**payload.fds, **fds}
            fields = {
                "loader": binding.number,
                "descriptors": list(all_fds),
                "background": binding.background,
                "requested": binding.has_requested,
            }
            self._send(handle, FdMessage(fields, b"", tuple(all_fds.values())))
            self._member.send(worker, 0, self._assigned_to, worker)
            self.wake()
            return handle

    def _send(self, handle: WorkerHandle, message: FdMessage) -> None:
        try:
            fd_messages.send(handle.loaders, message)
        except ConnectionError:
            pass  # it has died, which the loader will notice
        except OSError:
            # It has not read for long, or too many descriptors are under way: it is replaced.
            handle.process.kill()

    def _start(self, worker: int, user_code: bool) -> WorkerHandle:
        self._drop(worker)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        method = self._context.get_start_method()
        parent = 0 if method == "forkserver" and user_code else os.getpid()
        fds = {"control_fd": self._control.fd, "loaders_fd": theirs.fileno()}
        config, cpus = PoolWorkerConfig(worker, parent, **fds), self._cores.cpus(worker)
        with theirs:
            if method == "fork":
                target = pool_worker.main_for_user_code
                process = processes.start(self._context, target, config, {}, cpus=cpus)
            elif user_code:
                descriptors = {name: Descriptor(fd) for name, fd in fds.items()}
                target = pool_worker.main_for_user_code
                process = processes.start(self._context, target, config, descriptors, cpus=cpus)
            else:
                where = "fusionloader.sharing.pool.worker"
                process = BareProcess(where, config, tuple(fds.values()), cpus=cpus)
        return WorkerHandle(process, ours, user_code or method == "fork", self._queue, worker)

    def _end_bare(self) -> None:
        """Ends the bare interpreters, so that processes that can run user code replace them."""
        log.info("the workers of a pool are started again: a loader with user code has begun")
        for worker, handle in list(self._handles.items()):
            if not handle.user_code:
                handle.ended_by_pool = True
                handle.process.kill()
                handle.process.join(_PATIENCE_SECONDS)
                self._drop(worker)

    def _drop(self, worker: int) -> None:
        handle = self._handles.pop(worker, None)
        if handle is not None:
            handle.close()

    def end_with(self, owner: WorkerPool) -> None:
        """Closes the processes when ``owner`` is collected, unless they were closed before."""
        self._end = ExitFinalizer(owner, self.close)

    def close(self) -> None:
        if self.closed or os.getpid() != self.pid:
            return  # in a forked child, the processes are its parent's
        with self._lock:
            self.closed = True
            self._queue.stop()
            self.wake()
            running = [handle.process for handle in self._handles.values()]
            processes.end(running, _PATIENCE_SECONDS, meanwhile=self._drain)
            for worker in list(self._handles):
                self._drop(worker)
            self._cores.close()
            self._control.close()
            if self._end is not None:
                self._end.detach()  # it would keep the control block mapped as long as its owner


def running(pool: WorkerPool) -> PoolProcesses:
    """Returns the processes of a pool, new ones after ``close`` or a fork."""
    pool = pool.owner
    with _creation:
        found = pool._processes
        if not isinstance(found, PoolProcesses) or found.closed or found.pid != os.getpid():
            found = PoolProcesses(pool.num_workers, pool.multiprocessing_context, pool.cpu_affinity)
            pool._processes = found
            found.end_with(pool)
        return found
