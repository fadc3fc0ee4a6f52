"""The processes of a ``WorkerPool``, and the loaders that they are sent to.

Workers move as between ranks, by an assignment in a control block (csrc/queue/worker_sharing.hpp).
What they need for a loader comes as for borrowed workers: descriptors through a socket. The
decision is made in the same process: the loader that is asked for a batch calls all workers.
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
from fusionloader.options import WorkerPool
from fusionloader.pool import worker as pool_worker
from fusionloader.pool.worker import PoolWorkerConfig
from fusionloader.shm import objects
from fusionloader.workers import fd_messages, processes
from fusionloader.workers.cpus import lease
from fusionloader.workers.processes import BareProcess, Descriptor, Process

if TYPE_CHECKING:
    from fusionloader.pool.binding import PoolBinding

log = logging.getLogger("fusionloader.workers")

_PATIENCE_SECONDS = 5.0
_making = threading.RLock()  # two threads may begin the first loaders of a pool
_MOST_LOADERS = 0xFFFF  # their numbers have 16 bits in an assignment, and none is 0


class Payload:
    """What workers need for a loader: a pickle, which all of them read, and descriptors.

    ``user_code`` says whether it can be opened only where multiprocessing has prepared the process.
    """

    def __init__(self, contents: Any, fds: dict[str, int], user_code: bool) -> None:
        """Raises PicklingError where the contents cannot be pickled."""
        self.user_code = user_code
        try:
            pickled = pickle.dumps(contents, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # locks raise RuntimeError, lambdas AttributeError
            raise PicklingError(str(error)) from error
        config_fd = os.memfd_create("fusionloader")
        weakref.finalize(self, os.close, config_fd)
        with open(config_fd, "wb", closefd=False) as file:
            file.write(pickled)
        self.fds = {"config_fd": config_fd, **fds}


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """A worker's process, and the socket through which it hears of loaders."""

    process: Process
    loaders: socket.socket
    user_code: bool
    orders: _native.ManagerQueue
    worker: int
    told_to_end: bool = False
    _was_prepared: bool = False

    @property
    def was_prepared(self) -> bool:
        """Whether it was not preparing for a loader, nor before that, when last seen or it died."""
        announced = self.orders.worker(self.worker).pid
        return self._was_prepared or announced == self.process.pid

    def close(self) -> None:
        """Another process takes its binding."""
        self._was_prepared = self.was_prepared
        self.loaders.close()


class PoolProcesses:
    """The processes: started when a loader first needs them, and again when they have died."""

    def __init__(self, workers: int, context: Any, cpu_affinity: str) -> None:
        self.workers = workers
        self._cores = lease(cpu_affinity, workers)
        self.closed = False
        self.pid = os.getpid()
        self._end: weakref.finalize[..., WorkerPool] | None = None
        self._context = context if context is not None else torch.multiprocessing.get_context()
        self._lock = threading.RLock()  # finalizers may run in the middle of any statement
        self._handles: dict[int, WorkerHandle] = {}
        self._bindings: dict[int, weakref.ref[PoolBinding]] = {}
        self._last = 0
        self._sent_to = 0
        nbytes = _native.ManagerQueue.control_bytes(workers, 1)
        self._control_fd = objects.create(nbytes)
        self._queue = _native.ManagerQueue(self._control_fd, -1, workers, 1, 0, workers)
        self._orders = _native.MemberView(self._control_fd, -1)

    # ---- loaders -------------------------------------------------------------------------------

    def enter(self, binding: PoolBinding) -> int:
        """Returns a number for a loader, by which workers are sent to it."""
        with self._lock:
            number = self._last % _MOST_LOADERS + 1
            while number in self._bindings:
                number = number % _MOST_LOADERS + 1
            self._last = number
            self._bindings[number] = weakref.ref(binding)
            return number

    def leave(self, number: int) -> None:
        """Forgets a loader that has ended."""
        with self._lock:
            self._bindings.pop(number, None)
            if self._sent_to == number:
                self._sent_to = 0
            self._wake()

    def call(self, number: int) -> None:
        """Sends all workers to a loader, unless that is where they were sent last.

        Raises:
            RuntimeError: there are none any more, the pool was closed.
        """
        self._check_open()
        if self._sent_to == number:
            return
        with self._lock:
            self._sent_to = number
            for worker in list(self._handles):
                self._orders.send(worker, 0, number, worker)
            self._wake()

    def others(self, number: int) -> list[PoolBinding]:
        """Returns the other loaders."""
        found = [binding() for other, binding in list(self._bindings.items()) if other != number]
        return [binding for binding in found if binding is not None]

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError(
                "the WorkerPool was closed while an iterator was under way: iterate the loader anew"
            )

    def _drain(self) -> None:
        for binding in self.others(0):
            binding.drain()

    def _wake(self) -> None:
        """Workers sleep at the loader that they are at."""
        self._queue.wake_workers()
        for binding in self.others(0):
            binding.queue.wake_workers()

    # ---- processes -----------------------------------------------------------------------------

    def assign(
        self, worker: int, number: int, payload: Payload, fds: dict[str, int]
    ) -> WorkerHandle:
        """Has a worker serve a loader too; starts its process if there is none."""
        with self._lock:
            self._check_open()
            handle = self._handles.get(worker)
            if handle is not None and payload.user_code and not handle.user_code:
                self._end_bare()
                handle = None
            if handle is None or not handle.process.is_alive():
                handle = self._handles[worker] = self._start(worker, payload.user_code)
            all_fds = {**payload.fds, **fds}
            fields = {"loader": number, "descriptors": list(all_fds)}
            try:
                fd_messages.send(
                    handle.loaders, fd_messages.Message(fields, b"", tuple(all_fds.values()))
                )
            except BlockingIOError:  # it has heard of nothing for long: another one does better
                handle.process.kill()
            except OSError:
                pass  # it is dead, which the loader will notice
            self._orders.send(worker, 0, self._sent_to, worker)
            self._wake()
            return handle

    def _start(self, worker: int, user_code: bool) -> WorkerHandle:
        self._drop(worker)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        method = self._context.get_start_method()
        parent = 0 if method == "forkserver" and user_code else os.getpid()
        fds = {"control_fd": self._control_fd, "loaders_fd": theirs.fileno()}
        config, cpus = PoolWorkerConfig(worker, parent, **fds), self._cores.of(worker)
        with theirs:
            if method == "fork":
                target = pool_worker.main_for_user_code
                process = processes.start(self._context, target, config, {}, cpus=cpus)
            elif user_code:
                descriptors = {name: Descriptor(fd) for name, fd in fds.items()}
                target = pool_worker.main_for_user_code
                process = processes.start(self._context, target, config, descriptors, cpus=cpus)
            else:
                where = "fusionloader.pool.worker"
                process = BareProcess(where, config, tuple(fds.values()), cpus=cpus)
        return WorkerHandle(process, ours, user_code or method == "fork", self._queue, worker)

    def _end_bare(self) -> None:
        """Ends the processes that know nothing of the training script, for others to come."""
        log.info("the workers of a pool are started again: a loader with user code has begun")
        for worker, handle in list(self._handles.items()):
            if not handle.user_code:
                handle.told_to_end = True
                handle.process.kill()
                handle.process.join(_PATIENCE_SECONDS)
                self._drop(worker)

    def _drop(self, worker: int) -> None:
        handle = self._handles.pop(worker, None)
        if handle is not None:
            handle.close()

    def end_with(self, owner: WorkerPool) -> None:
        """Has the processes end when ``owner`` is gone, unless they were closed before."""
        self._end = weakref.finalize(owner, self.close)

    def close(self) -> None:
        """Ends the processes."""
        if self.closed or os.getpid() != self.pid:
            return  # in a forked child they are its parent's
        with self._lock:
            self.closed = True
            self._queue.stop()
            self._wake()
            running = [handle.process for handle in self._handles.values()]
            processes.end(running, _PATIENCE_SECONDS, meanwhile=self._drain)
            for worker in list(self._handles):
                self._drop(worker)
            self._cores.close()
            os.close(self._control_fd)
            if self._end is not None:
                self._end.detach()  # it would keep the control block for as long as its owner


def running(pool: WorkerPool) -> PoolProcesses:
    """Returns the processes of a pool, new ones where they were closed or are another process's."""
    with _making:
        made = pool._processes
        if not isinstance(made, PoolProcesses) or made.closed or made.pid != os.getpid():
            made = PoolProcesses(pool.num_workers, pool.multiprocessing_context, pool.cpu_affinity)
            pool._processes = made
            made.end_with(pool)
        return made
