"""The proxy: the process by which remote workers take part in a loader's work.

Each core of a remote worker is a lane (lane.py), with a number in the queue as this machine's
workers have. The training process says through a pipe who may be asked, and ends the proxy by
closing it. A proxy that dies loses what its lanes held, as any worker does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from dataclasses import dataclass, replace

from fusionloader import _native
from fusionloader.remote.board import LANES, RemoteBoard
from fusionloader.remote.gates import LayoutGate, make_gate
from fusionloader.remote.lane import DEPTH, Lane, LaneQueue
from fusionloader.remote.observed import Observer
from fusionloader.remote.offload_metrics import MetricKeys
from fusionloader.remote.user_code.layouts import LayoutRows
from fusionloader.remote.work import RemoteWork
from fusionloader.transport.address import Address
from fusionloader.transport.identity import Identity
from fusionloader.workers import messages

_LOOK_SECONDS = 0.1
_REFUSED_SECONDS = 60.0  # until a worker that has refused is asked again
_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """Configuration of a proxy; the descriptors are open in it under these numbers.

    ``first_worker`` is the number of the first lane in the queue; this machine's workers have
    those below ``local_workers``. User code has no table: its descriptor is -1.
    """

    first_worker: int
    local_workers: int
    control_fd: int
    data_fd: int
    table_fd: int
    table_bytes: int
    message_fd: int
    orders_fd: int
    board_fd: int
    identity_fd: int
    channels: int
    work: RemoteWork
    keys: MetricKeys

    def descriptors(self) -> tuple[int, ...]:
        """Returns the descriptors that have to be open in the process."""
        table = () if self.table_fd < 0 else (self.table_fd,)
        return (
            self.control_fd,
            self.data_fd,
            *table,
            self.message_fd,
            self.orders_fd,
            self.board_fd,
            self.identity_fd,
        )


def main(config: ProxyConfig) -> None:
    """Serves until the pipe of orders is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process handles Ctrl-C
    Proxy(config).serve()
    os._exit(0)  # a lane may wait for an answer that nobody wants any more


class Proxy:
    """Opens and ends lanes, as many as the workers that may be asked have cores."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self._orders = b""
        self._wanted: list[Address] = []
        self._lanes: dict[int, Lane] = {}
        self._left_alone: dict[Address, float] = {}  # until when
        self._said: set[str] = set()
        self._board = RemoteBoard(config.board_fd)
        self._cpu_before = self._board.proxy_cpu_ns  # of the proxies before this one
        self._identity = Identity(config.identity_fd)
        self._made_shared: LaneQueue | None = None
        self._queue = _native.WorkerQueue(config.control_fd, config.data_fd, config.first_worker)

    def serve(self) -> None:
        """Follows orders until there will be none, or the queue is stopped.

        Workers that were forked from training meanwhile hold the pipe's other end, too.
        """
        poll = select.poll()
        poll.register(self._config.orders_fd, select.POLLIN)
        begun = time.process_time_ns()  # starting is not what samples cost
        while not self._queue.stopping:
            if poll.poll(_LOOK_SECONDS * 1000) and not self._follow():
                return
            self._tend()
            self._board.proxy_cpu_ns = self._cpu_before + time.process_time_ns() - begun
            if self._made_shared is not None:
                self._made_shared.gate.look(DEPTH * len(self._lanes))

    def _follow(self) -> bool:
        """Reads who may be asked, line by line; ``False`` at the end."""
        read = os.read(self._config.orders_fd, _READ)
        *lines, self._orders = (self._orders + read).split(b"\n")
        if lines:
            self._wanted = [Address(*each) for each in json.loads(lines[-1])]
        return bool(read)

    def _say(self, text: str) -> None:
        """Has the training process warn, once of each thing."""
        if text not in self._said:
            self._said.add(text)
            messages.send(self._config.message_fd, messages.RemoteNotice(text))

    @property
    def _shared(self) -> LaneQueue:
        """Made when it is known who the workers are."""
        if self._made_shared is None:
            config, work = self._config, self._config.work
            rows = _rows(config)
            hosts = sorted({address.host for address in self._wanted})
            gate = make_gate(
                work,
                self._board,
                Observer(self._queue, self._board, config.local_workers, config.first_worker),
                replace(config.keys, nodes=hosts),
            )
            self._made_shared = LaneQueue(
                control_fd=config.control_fd,
                data_fd=config.data_fd,
                pid=os.getpid(),
                rows=rows,
                work=work,
                identity=self._identity,
                board=self._board,
                gate=LayoutGate(gate, rows) if isinstance(rows, LayoutRows) else gate,
                say=self._say,
            )
        return self._made_shared

    # ---- lanes ---------------------------------------------------------------------------------

    def _tend(self) -> None:
        now = time.monotonic()
        for number, lane in list(self._lanes.items()):
            if lane.is_over:
                del self._lanes[number]
                if lane.was_refused:
                    self._left_alone[lane.address] = now + _REFUSED_SECONDS
            elif lane.address not in self._wanted:
                lane.leave()
        for address in self._wanted:
            if now >= self._left_alone.get(address, 0.0):
                self._open(address)

    def _open(self, address: Address) -> None:
        """Has as many lanes to a worker as it has cores; one until that is known."""
        open_now = [lane for lane in self._lanes.values() if lane.address == address]
        wanted = max([lane.cores for lane in open_now], default=0)
        free = (number for number in range(LANES) if number not in self._lanes)
        for number, _ in zip(free, range(max(wanted, 1) - len(open_now)), strict=False):
            worker = self._config.first_worker + number
            self._lanes[number] = Lane(number, worker, address, self._shared)


def _rows(config: ProxyConfig) -> _native.RemoteRows | LayoutRows:
    work = config.work
    if work.code is not None:
        return LayoutRows()
    table = _native.SharedMapping(config.table_fd, 0, config.table_bytes)
    return _native.RemoteRows(table, work.row_bytes, work.convert, config.channels)
