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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from fusionloader import _native
from fusionloader.workers import failures, fd_messages, messages
from fusionloader.workers.native_worker import LightWorker, LightWorkerConfig

if TYPE_CHECKING:
    from fusionloader.workers.processes import Descriptor

_IDLE_SECONDS = 0.5
_NO_SLOTS = -1
_PREPARING = 0  # no process


@dataclass(frozen=True, slots=True)
class PoolWorkerConfig:
    """What a worker needs to know; the descriptors are open under these numbers.

    ``control_fd`` is the pool's control block, where its errands stand. What it needs in order to
    work for a loader comes through the socket ``loaders_fd``.
    """

    worker: int
    parent: int
    control_fd: int
    loaders_fd: int


class Worker(Protocol):
    """What works for one loader."""

    queue: _native.WorkerQueue

    def serve(self, once: bool = False) -> str:
        """Works until there is nothing to do, until it is sent elsewhere, or for one claim."""

    def rest(self, seen: int) -> None:
        """Sleeps until there may be something to do, since the queue's word was ``seen``."""


def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class Place:
    """The worker of one loader, and how the process becomes that loader's and ceases to be.

    ``fds`` are those of the loader's memory, which the worker refers to.
    """

    worker: Worker
    fds: tuple[int, ...] = ()
    enter: Callable[[], None] = _nothing
    leave: Callable[[], None] = _nothing

    def close(self) -> None:
        """Lets go of the loader's memory."""
        del self.worker
        _close(self.fds)


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
        self._places: dict[int, Place] = {}  # by the number of the loader in the pool
        self._at: Place | None = None
        self._sent_to = self._orders.answer()

    def serve(self) -> None:
        self._meet_loaders()
        while not self._orders.stopping and os.getppid() == self._parent:
            here = self._places.get(self._sent_to)
            queue = self._orders if here is None else here.worker.queue
            rest = self._rest if here is None else here.worker.rest
            seen = queue.work_word  # before looking for errands and work: both change it
            if self._orders.is_sent:
                self._sent_to = self._orders.answer()
                self._meet_loaders()
            elif here is not None and self._serve(here) != "idle":
                pass  # it has ended, or there is an errand
            elif not self._help(here):
                rest(seen)
            self._forget_ended()

    def _rest(self, seen: int) -> None:
        self._orders.sleep(seen, _IDLE_SECONDS)

    def _serve(self, place: Place, once: bool = False) -> str:
        if place is not self._at:
            self._step_out()
            self._at = place
            place.enter()
        return place.worker.serve(once)

    def _step_out(self) -> None:
        if self._at is not None:
            self._at.leave()
            self._at = None

    def _help(self, here: Place | None) -> bool:
        """Does a little for another loader; tells whether there was something to do."""
        others = [place for place in self._places.values() if place is not here]
        return any(self._serve(place, once=True) == "served" for place in others)

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
            place = self._place(fds)
            self._orders.announce(os.getpid())
            if place is None:
                _close(tuple(fds.values()))
            else:
                place.fds = tuple(fds.values())
                self._places[int(message.fields["loader"])] = place

    def _place(self, fds: dict[str, int]) -> Place | None:
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
        if isinstance(config, LightWorkerConfig):
            return self._of_plan(config, info, fds)
        from fusionloader.pool.user_code import place_of

        return place_of(config, self._number, fds, self._orders)

    def _of_plan(self, config: LightWorkerConfig, info: Any, fds: dict[str, Any]) -> Place | None:
        config = replace(config, worker=self._number, parent=self._parent, **fds)
        if info is not None:
            from fusionloader.workers.prepared_worker import prepare

            if not prepare(config, info):
                return None
        return Place(LightWorker(config, self._orders))

    def _forget_ended(self) -> None:
        for number, place in list(self._places.items()):
            if place.worker.queue.stopping:
                if self._at is place:
                    self._step_out()
                del self._places[number]
                place.close()


def _close(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
