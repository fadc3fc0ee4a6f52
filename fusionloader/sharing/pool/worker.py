"""A worker of a pool: serves the loader that it is assigned to, and others while that has no work.

Theory of operation. The worker keeps one ``ServedLoader`` for every loader of the pool: an attached
queue and a native or Python worker on it, under the same number in each. The loaders share nothing
but the process. torch is imported only for loaders that run user code.

*Attaching.* The pool sends a loader's number, descriptors and pickled payload through a socket.
While the worker prepares for that loader it announces no pid in the pool's control block. So a
death before the announcement counts as that loader's failed start, and a later one does not.

*Assigning.* One word in the pool's control block names the loader that all workers are assigned to
(csrc/queue/worker_sharing.hpp). It is the loader whose batch the training process waits for. The
worker serves it until there is no work or the word changes. While it has none, the worker serves
one claim at a time of any other loader, and looks for work of the assigned one in between.
Background loaders are never assigned workers, and come last among the others.

*Sleeping.* The worker reads the queue's word before it looks for assignments and work, both of
which change that word when they arrive. So none is missed between the look and the sleep.

*Switching.* User code finds ``get_worker_info`` and, where it seeds them itself, the global
generators as its own loader left them: ``activate`` and ``deactivate`` restore and save them.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fusionloader import _native
from fusionloader._native import WorkerEvent
from fusionloader.sharing.pool.served_loader import ServedLoader, close_all
from fusionloader.system import fd_messages
from fusionloader.workers import messages, sample_errors
from fusionloader.workers.native_worker import NativeWorker, NativeWorkerConfig

if TYPE_CHECKING:
    from fusionloader.system.shm.descriptor import Descriptor
    from fusionloader.workers.prepared_worker import Info

_IDLE_SECONDS = 0.5
_NO_SLOTS = -1
_PREPARING = 0  # the pid that a worker announces while it prepares for a loader


@dataclass(frozen=True, slots=True)
class PoolWorkerConfig:
    """Configuration of a worker process; the descriptors are open in it under these numbers.

    Attributes:
        worker: its number in the pool.
        parent: pid of the training process, 0 for the process's parent (a fork server).
        control_fd: the pool's control block, with the assignments.
        loaders_fd: the socket through which loaders are received.
    """

    worker: int
    parent: int
    control_fd: int
    loaders_fd: int


def main(config: PoolWorkerConfig) -> None:
    """Serves until the pool is closed or the training process has ended."""
    _PoolWorker(config).serve()


def main_for_user_code(config: PoolWorkerConfig, descriptors: dict[str, Descriptor]) -> None:
    """Serves in a multiprocessing process, where ``descriptors`` may have other numbers."""
    fds: dict[str, Any] = {name: descriptor.fd for name, descriptor in descriptors.items()}
    main(replace(config, **fds))


class _PoolWorker:
    def __init__(self, config: PoolWorkerConfig) -> None:
        self._number = config.worker
        self._parent = config.parent or os.getppid()
        self._pool = _native.WorkerQueue(config.control_fd, _NO_SLOTS, config.worker)
        self._loaders = socket.socket(fileno=config.loaders_fd)
        self._loaders.setblocking(False)
        self._served: dict[int, ServedLoader] = {}  # by the number of the loader in the pool
        self._active: ServedLoader | None = None
        self._assigned_to = self._pool.answer()

    def serve(self) -> None:
        self._receive_loaders()
        while self._goes_on():
            assigned = self._served.get(self._assigned_to)
            queue = self._pool if assigned is None else assigned.worker.queue
            rest = self._rest if assigned is None else assigned.worker.rest
            seen = queue.work_word  # before looking for assignments and work: both change it
            if self._pool.is_sent:
                self._assigned_to = self._pool.answer()
                self._receive_loaders()
            elif assigned is not None and self._serve(assigned) is not WorkerEvent.IDLE:
                pass  # it has ended, or there is an assignment
            elif not self._serve_another(assigned):
                rest(seen)
            self._close_ended()

    def _goes_on(self) -> bool:
        return not self._pool.stopping and os.getppid() == self._parent

    def _rest(self, seen: int) -> None:
        self._pool.sleep(seen, _IDLE_SECONDS)

    def _serve(self, loader: ServedLoader, once: bool = False) -> WorkerEvent:
        if loader is not self._active:
            self._deactivate()
            self._active = loader
            loader.activate()
        return loader.worker.serve(once)

    def _deactivate(self) -> None:
        if self._active is not None:
            self._active.deactivate()
            self._active = None

    def _serve_another(self, assigned: ServedLoader | None) -> bool:
        """Serves one claim of another loader; returns whether there was one."""
        others = [loader for loader in self._served.values() if loader is not assigned]
        others.sort(key=lambda loader: loader.background)
        return any(self._serve(loader, once=True) is WorkerEvent.SERVED for loader in others)

    # ---- loaders -------------------------------------------------------------------------------

    def _receive_loaders(self) -> None:
        while True:
            try:
                message = fd_messages.receive(self._loaders)
            except BlockingIOError:
                return
            if message is None:
                if self._goes_on():  # the loader would wait for this worker forever
                    raise SystemExit(
                        f"DataLoader worker process {self._number} of a pool has not received the "
                        "descriptors of a loader: it may open no more files. It is replaced"
                    )
                return
            if "requested" in message.fields and "loader" not in message.fields:
                self._note_request(int(message.fields["requested"]))
                continue
            self._deactivate()
            fds = dict(zip(message.fields["descriptors"], message.fds, strict=True))
            self._pool.announce(_PREPARING)
            loader = self._prepared(fds)
            self._pool.announce(os.getpid())
            if loader is None:
                close_all(tuple(fds.values()))
            else:
                loader.fds = tuple(fds.values())
                loader.background = bool(message.fields["background"])
                self._served[number := int(message.fields["loader"])] = loader
                if message.fields["requested"]:
                    self._note_request(number)

    def _note_request(self, number: int) -> None:
        loader = self._served.get(number)  # it may have ended, or failed to start
        if loader is not None:
            loader.batch_requested()

    def _prepared(self, fds: dict[str, int]) -> ServedLoader | None:
        """Prepares to serve a loader; sends it a failure and returns ``None`` on an error."""
        config_fd = fds.pop("config_fd")
        queue = _native.WorkerQueue(fds["control_fd"], fds["data_fd"], self._number)
        try:
            with mmap.mmap(config_fd, 0, access=mmap.ACCESS_READ) as pickled:
                config, info = pickle.loads(pickled)
        except Exception as error:  # a class of the script, a module that cannot be imported
            where = f"in DataLoader worker process {self._number}"
            failed = messages.WorkerFailed(sample_errors.capture(error, where))
            messages.send(fds["message_fd"], failed)
            queue.wake_manager()
            return None
        finally:
            os.close(config_fd)
        if isinstance(config, NativeWorkerConfig):
            return self._native(config, info, fds)
        from fusionloader.sharing.pool.user_code import user_code_loader

        return user_code_loader(config, self._number, fds, self._pool)

    def _native(
        self, config: NativeWorkerConfig, info: Info | None, fds: dict[str, int]
    ) -> ServedLoader | None:
        descriptors: dict[str, Any] = {**fds}
        config = replace(config, worker=self._number, parent=self._parent, **descriptors)
        if info is not None:
            from fusionloader.workers.prepared_worker import prepare

            if not prepare(config, info):
                return None
        return ServedLoader(NativeWorker(config, self._pool))

    def _close_ended(self) -> None:
        for number, loader in list(self._served.items()):
            if loader.worker.queue.stopping:
                if self._active is loader:
                    self._deactivate()
                del self._served[number]
                loader.close()
