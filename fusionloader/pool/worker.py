"""A worker of a pool: serves the loader that it is sent to, and others while that has no work.

For each loader it is what a worker of the loader's own would be, under the same number: nothing but
the process is shared. It imports torch only for loaders that run user code.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fusionloader import _native
from fusionloader._native import WorkerEvent
from fusionloader.pool.served_loader import ServedLoader, close_all
from fusionloader.workers import failures, fd_messages, messages
from fusionloader.workers.native_worker import NativeWorker, NativeWorkerConfig

if TYPE_CHECKING:
    from fusionloader.workers.processes import Descriptor

_IDLE_SECONDS = 0.5
_NO_SLOTS = -1
_PREPARING = 0  # no process


@dataclass(frozen=True, slots=True)
class PoolWorkerConfig:
    """What a worker needs to know; the descriptors are open under these numbers.

    ``control_fd`` is the pool's control block, which holds its assignments. What it needs in order
    to work for a loader comes through the socket ``loaders_fd``.
    """

    worker: int
    parent: int
    control_fd: int
    loaders_fd: int


def main(config: PoolWorkerConfig) -> None:
    """Serves until the pool is closed or the training process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training process's to handle
    _PoolWorker(config).serve()


def main_for_user_code(config: PoolWorkerConfig, descriptors: dict[str, Descriptor]) -> None:
    """Serves in a process of multiprocessing's, where ``descriptors`` may have other numbers."""
    from fusionloader.workers.processes import leave_with

    leave_with(config.parent)  # user code may take long, or for ever
    fds: dict[str, Any] = {name: descriptor.fd for name, descriptor in descriptors.items()}
    main(replace(config, **fds))


class _PoolWorker:
    def __init__(self, config: PoolWorkerConfig) -> None:
        self._number = config.worker
        self._parent = config.parent or os.getppid()
        self._orders = _native.WorkerQueue(config.control_fd, _NO_SLOTS, config.worker)
        self._loaders = socket.socket(fileno=config.loaders_fd)
        self._loaders.setblocking(False)
        self._served: dict[int, ServedLoader] = {}  # by the number of the loader in the pool
        self._at: ServedLoader | None = None
        self._sent_to = self._orders.answer()

    def serve(self) -> None:
        self._meet_loaders()
        while not self._orders.stopping and os.getppid() == self._parent:
            here = self._served.get(self._sent_to)
            queue = self._orders if here is None else here.worker.queue
            rest = self._rest if here is None else here.worker.rest
            seen = queue.work_word  # before looking for assignments and work: both change it
            if self._orders.is_sent:
                self._sent_to = self._orders.answer()
                self._meet_loaders()
            elif here is not None and self._serve(here) is not WorkerEvent.IDLE:
                pass  # it has ended, or there is an assignment
            elif not self._help(here):
                rest(seen)
            self._forget_ended()

    def _rest(self, seen: int) -> None:
        self._orders.sleep(seen, _IDLE_SECONDS)

    def _serve(self, loader: ServedLoader, once: bool = False) -> WorkerEvent:
        if loader is not self._at:
            self._step_out()
            self._at = loader
            loader.enter()
        return loader.worker.serve(once)

    def _step_out(self) -> None:
        if self._at is not None:
            self._at.leave()
            self._at = None

    def _help(self, here: ServedLoader | None) -> bool:
        """Does a little for another loader; tells whether there was something to do."""
        others = [loader for loader in self._served.values() if loader is not here]
        return any(self._serve(loader, once=True) is WorkerEvent.SERVED for loader in others)

    # ---- loaders -------------------------------------------------------------------------------

    def _meet_loaders(self) -> None:
        while True:
            try:
                message = fd_messages.receive(self._loaders)
            except BlockingIOError:
                return
            if message is None:
                return
            self._step_out()
            fds = dict(zip(message.fields["descriptors"], message.fds, strict=True))
            # A death from here on is this loader's trouble, later ones are not.
            self._orders.announce(_PREPARING)
            loader = self._prepared(fds)
            self._orders.announce(os.getpid())
            if loader is None:
                close_all(tuple(fds.values()))
            else:
                loader.fds = tuple(fds.values())
                self._served[int(message.fields["loader"])] = loader

    def _prepared(self, fds: dict[str, int]) -> ServedLoader | None:
        """Prepares to work for a loader; ``None`` where that fails, which the loader is told."""
        config_fd = fds.pop("config_fd")
        queue = _native.WorkerQueue(fds["control_fd"], fds["data_fd"], self._number)
        try:
            with mmap.mmap(config_fd, 0, access=mmap.ACCESS_READ) as pickled:
                config, info = pickle.loads(pickled)
        except Exception as error:  # what is of the script, a module that cannot be imported
            where = f"in DataLoader worker process {self._number}"
            failed = messages.WorkerFailed(failures.capture(error, where))
            messages.send(fds["message_fd"], failed)
            queue.wake_manager()
            return None
        finally:
            os.close(config_fd)
        if isinstance(config, NativeWorkerConfig):
            return self._of_plan(config, info, fds)
        from fusionloader.pool.user_code import user_code_loader

        return user_code_loader(config, self._number, fds, self._orders)

    def _of_plan(
        self, config: NativeWorkerConfig, info: Any, fds: dict[str, Any]
    ) -> ServedLoader | None:
        config = replace(config, worker=self._number, parent=self._parent, **fds)
        if info is not None:
            from fusionloader.workers.prepared_worker import prepare

            if not prepare(config, info):
                return None
        return ServedLoader(NativeWorker(config, self._orders))

    def _forget_ended(self) -> None:
        for number, loader in list(self._served.items()):
            if loader.worker.queue.stopping:
                if self._at is loader:
                    self._step_out()
                del self._served[number]
                loader.close()
