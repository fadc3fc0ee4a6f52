"""The proxy: the process by which remote workers take part in a loader's work.

Each core of a remote worker has a lane (lane.py), with a number in the queue like a worker of this
machine. The training process sends the workers' addresses through a pipe, and closes the pipe to
end the proxy. The proxy also ends when the queue is stopped or its parent has ended, since a
process that training has forked may hold the pipe open. When a proxy dies, the tiny-batches that
its lanes held are taken back, as those of any worker.

There are ``LANES`` lanes. If workers have more cores, they share the lanes equally. If there are
more workers, those that do not answer are left alone for a minute, and others get their lanes.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusionloader import _native
from fusionloader.sharing.remote.offload_metrics import MetricKeys
from fusionloader.sharing.remote.proxy.gates import Observer, make_gate
from fusionloader.sharing.remote.proxy.greeting import RemoteWork
from fusionloader.sharing.remote.proxy.lane import DEPTH, Lane, LaneQueue
from fusionloader.sharing.remote.remote_counters import LANES, RemoteCounters
from fusionloader.sharing.remote.user_code.layouts import LayoutRows
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from fusionloader.workers import messages

_LOOK_SECONDS = 0.1
_ALONE_SECONDS = 60.0  # until a worker that has refused is tried again
_MOST_WARNINGS = 256  # that are remembered, so that none is logged twice
_LONGEST_TEXT = 2000  # lanes write concurrently, so a message must fit into one atomic write
_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """Configuration of a proxy; the descriptors are open in it under these numbers.

    Attributes:
        parent: pid of the training process.
        first_worker: number of the first lane in the queue.
        local_workers: this machine's workers have the numbers below it.
        control_fd: the queue's control block.
        data_fd: the slots.
        table_fd: the dataset's table, -1 with user code.
        table_bytes: size of the table.
        message_fd: pipe for messages to the training process.
        orders_fd: pipe through which the workers' addresses come.
        counters_fd: the counters of remote workers.
        identity_fd: the credentials for connections to workers.
        channels: number of channels of a result.
        work: what the workers make.
        keys: keys of the metrics that FastFlow's policy stores.
    """

    parent: int
    first_worker: int
    local_workers: int
    control_fd: int
    data_fd: int
    table_fd: int
    table_bytes: int
    message_fd: int
    orders_fd: int
    counters_fd: int
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
            self.counters_fd,
            self.identity_fd,
        )


def main(config: ProxyConfig) -> None:
    """Serves until the pipe of orders is closed."""
    Proxy(config).serve()
    os._exit(0)  # at once: a lane may be waiting for an answer that is no longer needed


class Proxy:
    """Opens and ends lanes, one for each core of the workers."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self._orders = b""
        self._wanted: dict[Address, None] = {}  # used as an ordered set
        self._lanes: dict[int, Lane] = {}
        self._left_alone: dict[Address, float] = {}  # until when
        self._warned: set[str] = set()
        self._warning = threading.Lock()
        self._queue = _native.WorkerQueue(config.control_fd, config.data_fd, config.first_worker)
        self._counters = RemoteCounters(config.counters_fd)
        self._cpu_before = self._counters.proxy_cpu_ns  # of the proxies before this one
        self._identity = Identity(config.identity_fd)
        self._made_shared: LaneQueue | None = None

    def serve(self) -> None:
        """Serves until the pipe of orders is closed, the queue is stopped or training has ended."""
        poll = select.poll()
        poll.register(self._config.orders_fd, select.POLLIN)
        begun = time.process_time_ns()  # the time of starting is not part of what samples cost
        while not self._queue.stopping:
            if poll.poll(_LOOK_SECONDS * 1000) and not self._follow():
                return
            if os.getppid() != self._config.parent:
                return
            self._tend()
            self._counters.proxy_cpu_ns = self._cpu_before + time.process_time_ns() - begun
            if self._made_shared is not None:
                self._made_shared.gate.look(DEPTH * len(self._lanes))

    def _follow(self) -> bool:
        """Reads the workers' addresses, of which the last line counts; ``False`` at the end."""
        read = os.read(self._config.orders_fd, _READ)
        *lines, self._orders = (self._orders + read).split(b"\n")
        if lines:
            self._wanted = dict.fromkeys(Address(*each) for each in json.loads(lines[-1]))
        return bool(read)

    def _warn(self, text: str) -> None:
        """Has the training process log a warning, the same text only once."""
        text = text[:_LONGEST_TEXT]
        with self._warning:
            if text in self._warned:
                return
            if len(self._warned) >= _MOST_WARNINGS:  # many workers came and went
                self._warned.clear()
            self._warned.add(text)
            messages.send(self._config.message_fd, messages.RemoteNotice(text))

    @property
    def _shared(self) -> LaneQueue:
        """What lanes share; made once the workers, on which metrics depend, are known."""
        if self._made_shared is None:
            config, work = self._config, self._config.work
            hosts = sorted({address.host for address in self._wanted})
            gate = make_gate(
                work,
                self._counters,
                Observer(self._queue, self._counters, config.local_workers, config.first_worker),
                replace(config.keys, nodes=hosts),
            )
            self._made_shared = LaneQueue(
                control_fd=config.control_fd,
                data_fd=config.data_fd,
                pid=os.getpid(),
                rows=_rows(config),
                work=work,
                identity=self._identity,
                counters=self._counters,
                gate=gate,
                warn=self._warn,
            )
        return self._made_shared

    # ---- lanes ---------------------------------------------------------------------------------

    def _tend(self) -> None:
        now = time.monotonic()
        for number, lane in list(self._lanes.items()):
            lane.cut_if_overdue(now)
            if lane.is_over:
                del self._lanes[number]
                if lane.was_refused:
                    self._left_alone[lane.address] = now + _ALONE_SECONDS
            elif lane.address not in self._wanted:
                lane.leave()
        self._left_alone = {each: until for each, until in self._left_alone.items() if until > now}
        usable = self._usable()
        if len(usable) > LANES:
            self._end_unanswered_lanes(now)
            usable = self._usable()
        # Serving workers first, so that none of them loses a lane to one that may not answer.
        serving = {lane.address for lane in self._lanes.values() if not lane.is_away}
        usable.sort(key=lambda address: address not in serving)
        lanes: dict[Address, list[Lane]] = {address: [] for address in usable}
        for lane in self._lanes.values():
            if lane.address in lanes and not lane.is_leaving:
                lanes[lane.address].append(lane)
        cores = {  # one until that is known
            address: max([1, *(lane.cores for lane in own)]) for address, own in lanes.items()
        }
        for address, count in allot(cores, LANES).items():
            for lane in lanes[address][count:]:
                lane.leave()
            self._open(address, count - len(lanes[address]))

    def _usable(self) -> list[Address]:
        return [address for address in self._wanted if address not in self._left_alone]

    def _end_unanswered_lanes(self, now: float) -> None:
        """Ends the lanes of workers that do not answer, so that others get them."""
        for lane in self._lanes.values():
            if lane.is_away and lane.has_failed:
                lane.leave()
                self._left_alone[lane.address] = now + _ALONE_SECONDS

    def _open(self, address: Address, count: int) -> None:
        """Opens ``count`` lanes to a worker, as long as there are free ones."""
        if count <= 0 or len(self._lanes) == LANES:
            return
        named = {number: self._counters.lane(number).address for number in range(LANES)}
        free = [number for number in named if number not in self._lanes]
        # Prefer lanes that the worker had before, then unused ones: counts are kept by lane.
        free.sort(key=lambda number: (named[number] != str(address), named[number] != ""))
        for number in free[:count]:
            worker = self._config.first_worker + number
            self._lanes[number] = Lane(number, worker, address, self._shared)


def allot(cores: Mapping[Address, int], lanes: int) -> dict[Address, int]:
    """Returns the lanes of each worker: one for each core, or equally many if there are too few.

    If there are fewer lanes than workers, the first workers get one each.
    """
    allotted = dict.fromkeys(cores, 0)
    while lanes:
        lacking = [address for address, count in allotted.items() if count < cores[address]]
        if not lacking:
            break
        for address in lacking[:lanes]:
            allotted[address] += 1
        lanes -= len(lacking[:lanes])
    return allotted


def _rows(config: ProxyConfig) -> _native.RemoteRows | LayoutRows:
    work = config.work
    if work.code is not None:
        return LayoutRows()
    table = _native.SharedMapping(config.table_fd, 0, config.table_bytes)
    return _native.RemoteRows(table, work.row_bytes, work.convert, config.channels)
