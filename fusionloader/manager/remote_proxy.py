"""The proxy of remote workers as the local manager sees it: a process that holds many numbers."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable

from fusionloader import _native
from fusionloader.remote.board import LANES
from fusionloader.remote.link import RemoteTask
from fusionloader.remote.proxy.process import ProxyConfig
from fusionloader.transport.address import Address
from fusionloader.workers import messages, processes
from fusionloader.workers.processes import BareProcess

log = logging.getLogger("fusionloader.remote")

_CHECK_SECONDS = 0.1
_FRUITLESS_DEATHS = 3
_PATIENCE_SECONDS = 5.0


class RemoteProxy:
    """Starts the proxy, tells it who may be asked, takes back what a dead one held."""

    def __init__(self, task: RemoteTask, first_worker: int, local_workers: int) -> None:
        """Its lanes have the numbers from ``first_worker`` on, ``LANES`` of them."""
        self._task, self._first, self._local = task, first_worker, local_workers
        self._fruitless = 0
        self._checked = 0.0
        self._given: list[Address] | None = None
        self._process: BareProcess | None = None
        self._orders = -1
        self._unsent = b""
        self._receiver: messages.Receiver | None = None

    def start(self, queue: _native.ManagerQueue, control_fd: int, data_fd: int) -> None:
        """Starts the process."""
        self._queue = queue
        self._fds = control_fd, data_fd
        self._launch()

    def _launch(self) -> None:
        task, board = self._task, self._task.link.board
        read, write = os.pipe()
        orders_read, self._orders = os.pipe()
        os.set_blocking(self._orders, False)
        config = ProxyConfig(
            parent=os.getpid(),
            first_worker=self._first,
            local_workers=self._local,
            control_fd=self._fds[0],
            data_fd=self._fds[1],
            table_fd=task.table_fd,
            table_bytes=task.table_bytes,
            message_fd=write,
            orders_fd=orders_read,
            board_fd=board.fd,
            identity_fd=task.link.fleet.identity.fd,
            channels=task.channels,
            work=task.work,
            keys=task.keys,
        )
        try:
            self._process = BareProcess(
                "fusionloader.remote.proxy.process", config, config.descriptors(), apart=False
            )
        except BaseException:
            os.close(read)
            os.close(self._orders)
            raise
        finally:
            os.close(write)
            os.close(orders_read)
        self._receiver = messages.Receiver(read)
        self._samples_before = self._samples()
        self._given, self._unsent = None, b""
        self._give_orders()

    def _samples(self) -> int:
        return sum(lane.samples for lane in self._task.link.board.lanes())

    def _give_orders(self) -> None:
        """Says who may be asked, if that has changed; what the pipe does not take, the next time.

        Training does not wait for a proxy that does not read.
        """
        if not self._unsent:
            addresses = list(self._task.link.fleet.addresses())
            if addresses == self._given:
                return
            self._given, self._unsent = addresses, json.dumps(addresses).encode() + b"\n"
        # Broken: it has died, which is noticed soon.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self._unsent = self._unsent[os.write(self._orders, self._unsent) :]

    # ---- while the manager waits ---------------------------------------------------------------

    def handle(self, handle: Callable[[messages.Message], None]) -> None:
        """Calls ``handle`` with each message that has arrived; see ``Receiver.handle``."""
        if self._receiver is not None:
            self._receiver.handle(handle)

    def look(self, handle: Callable[[messages.Message], None]) -> None:
        """Replaces a dead proxy; what its lanes held is in the queue again.

        No sample is to blame for its death: none runs in it. ``handle`` gets what it reported.
        """
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS or self._process is None:
            return
        self._checked = now
        if self._process.is_alive():
            self._give_orders()
            self._task.link.tell_fleet()
            return
        self.handle(handle)
        manner = processes.describe_exit(self._process.exitcode)
        self._forget()
        for number in range(self._first, self._first + LANES):
            self._queue.take_back(number)
        self._fruitless = 0 if self._samples() > self._samples_before else self._fruitless + 1
        if self._fruitless >= _FRUITLESS_DEATHS:
            log.warning(
                "the process that speaks to remote workers %s, the %dth time in a row before it "
                "had a sample: this iterator goes on without them",
                *(manner, self._fruitless),
            )
            return
        log.warning("the process that speaks to remote workers %s; it is replaced", manner)
        try:
            self._launch()
        except OSError as error:
            log.warning("that cannot be done: %s; this iterator goes on without them", error)

    def _forget(self) -> None:
        self._process = None
        self._task.link.board.leave_all()
        os.close(self._orders)
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    # ---- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the process, after the queue was stopped."""
        if self._process is None:
            return
        process = self._process
        os.close(self._orders)
        self._orders = -1
        processes.end([process], _PATIENCE_SECONDS)
        if self._receiver is not None:
            self._receiver.close()
        self._process = self._receiver = None

    @property
    def processes(self) -> list[BareProcess]:
        """The process, where there is one."""
        return [] if self._process is None else [self._process]
