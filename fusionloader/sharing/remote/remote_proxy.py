"""The proxy of remote workers as the local manager sees it: one process with many numbers."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from typing import Any

from fusionloader.engine.manager.participant import Handle, Hub, Participant, ParticipantKind
from fusionloader.engine.manager.publications import Publications
from fusionloader.sharing.remote.proxy.process import ProxyConfig
from fusionloader.sharing.remote.remote_counters import LANES
from fusionloader.sharing.remote.remote_workers import RemoteTask
from fusionloader.system import processes
from fusionloader.system.processes import BareProcess, Process
from fusionloader.system.transport.address import Address
from fusionloader.workers import messages
from fusionloader.workers.worker_set import WorkerSet

log = logging.getLogger("fusionloader.remote")

_CHECK_SECONDS = 0.1
_FRUITLESS_DEATHS = 3
_PATIENCE_SECONDS = 5.0


class RemoteProxy(Participant):
    """Starts the proxy, sends it the workers' addresses, and replaces it when it has died."""

    kind: ParticipantKind = "remote"
    places = LANES

    def __init__(self, task: RemoteTask) -> None:
        self._task = task
        self._fruitless = 0
        self._checked = 0.0
        self._given: list[Address] | None = None
        self._process: BareProcess | None = None
        self._is_wanted = False
        self._warned = False  # whether it was logged that the process cannot be started
        self._orders = -1
        self._unsent = b""
        self._receiver: messages.Receiver | None = None

    def start(self, hub: Hub) -> None:
        self._hub, self._queue = hub, hub.queue

    def workers_started(self, workers: WorkerSet) -> None:
        self._launch()
        self._is_wanted = True

    def _launch(self) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            read, message_fd = _pipe(ours, theirs)
            orders_fd, orders = _pipe(theirs, ours)
            os.set_blocking(orders, False)
            process = self._start(message_fd, orders_fd)
            ours.pop_all()
        self._process, self._orders = process, orders
        self._receiver = messages.Receiver(read)
        self._samples_before = self._samples()
        self._given, self._unsent = None, b""
        self._give_orders()

    def _start(self, message_fd: int, orders_fd: int) -> BareProcess:
        task, counters = self._task, self._task.workers.counters
        config = ProxyConfig(
            parent=os.getpid(),
            first_worker=self.first,
            local_workers=self._hub.most_workers,
            control_fd=self._hub.control_fd,
            data_fd=self._hub.data_fd,
            table_fd=task.table_fd,
            table_bytes=task.table_bytes,
            message_fd=message_fd,
            orders_fd=orders_fd,
            counters_fd=counters.fd,
            identity_fd=task.workers.fleet.identity.fd,
            channels=task.channels,
            work=task.work,
            keys=task.keys,
        )
        return BareProcess(
            "fusionloader.sharing.remote.proxy.process", config, config.descriptors(), apart=False
        )

    def _samples(self) -> int:
        return sum(lane.samples for lane in self._task.workers.counters.lanes())

    def _give_orders(self) -> None:
        """Sends the workers' addresses if they have changed, without waiting for the proxy.

        The next call sends what the pipe does not take.
        """
        if not self._unsent:
            addresses = list(self._task.workers.addresses())
            if addresses == self._given:
                return
            self._given, self._unsent = addresses, json.dumps(addresses).encode() + b"\n"
        # A broken pipe shows that the proxy has died, which `look` handles.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self._unsent = self._unsent[os.write(self._orders, self._unsent) :]

    # ---- while the manager waits ---------------------------------------------------------------

    def receive(self, handle: Handle) -> None:
        if self._receiver is not None:
            self._receiver.handle(handle)

    def look(self, handle: Handle, publications: Publications[Any]) -> None:
        """Replaces a dead proxy, whose lanes' tiny-batches are in the queue again.

        The death counts against no sample, because the proxy runs none.
        """
        now = time.monotonic()
        if now - self._checked >= _CHECK_SECONDS and self._is_wanted:
            self._checked = now
            self._look(handle)

    def _look(self, handle: Handle) -> None:
        if self._process is not None:
            if self._process.is_alive():
                self._give_orders()
                self._task.workers.report_load()
                return
            self.receive(handle)
            self._forget(self._process)
        if self._is_wanted:
            self._launch_again()

    def _forget(self, dead: BareProcess) -> None:
        """Takes back what a dead proxy held; gives it up after three deaths without a sample."""
        for number in range(self.first, self.first + LANES):
            self._queue.take_back(number)
        manner = processes.describe_exit(dead.exitcode)
        fruitless = 0 if self._samples() > self._samples_before else self._fruitless + 1
        self._task.workers.counters.leave_all()
        self._close_pipes()
        # Last: after an exception above, the next call finds the dead process again.
        self._process, self._fruitless = None, fruitless
        self._is_wanted = fruitless < _FRUITLESS_DEATHS
        if self._is_wanted:
            log.warning("the process that speaks to remote workers %s; it is replaced", manner)
            return
        log.warning(
            "the process that speaks to remote workers %s, the %dth time in a row before it had a "
            "sample: this iterator goes on without them",
            *(manner, fruitless),
        )

    def _launch_again(self) -> None:
        try:
            self._launch()
        except OSError as error:
            if not self._warned:
                log.warning(
                    "the proxy of remote workers cannot start; it is tried again: %s", error
                )
            self._warned = True
        else:
            self._warned = False

    def _close_pipes(self) -> None:
        orders, self._orders = self._orders, -1
        if orders >= 0:
            os.close(orders)
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    # ---- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        self._is_wanted = False
        if self._process is None:
            return
        process = self._process
        os.close(self._orders)  # the end of this pipe ends the process
        self._orders = -1
        processes.end([process], _PATIENCE_SECONDS)
        self._close_pipes()
        self._process = None

    @property
    def processes(self) -> list[Process]:
        return [] if self._process is None else [self._process]


def _pipe(readers: contextlib.ExitStack, writers: contextlib.ExitStack) -> tuple[int, int]:
    """Returns the two ends of a pipe, each of which one of the stacks closes."""
    read, write = os.pipe()
    readers.callback(os.close, read)
    writers.callback(os.close, write)
    return read, write
