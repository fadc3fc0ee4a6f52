"""The process that reads URLs for the workers of a loader: an event loop over sockets.

The training process announces samples through one socket. When that socket is closed, this process
ends. Workers connect to a socket that the training process has bound. It outlives this process: a
replacement accepts the connections that wait in its queue. Each connection has its own memory, into
which the samples that its worker requested are copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.read_ahead import protocol
from fusionloader.data.read_ahead.counters import StreamCounters
from fusionloader.data.read_ahead.held_samples import HeldSamples
from fusionloader.data.read_ahead.protocol import Found, ReadAnswer
from fusionloader.data.sources.streams.object_store import ObjectStore
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.freed_memory import keep_freed_memory
from fusionloader.system.shm import objects

_LEAST_MEMORY = 1 << 20
_SPARE_CONNECTIONS = 8
_LOOK_SECONDS = 1.0  # how often it checks that the training process is alive


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """Arguments of the process. The descriptors are open in it under these numbers.

    Attributes:
        training: process id of the training process.
        listen_fd: socket that workers connect to.
        control_fd: socket to the training process.
        table_fd: memory of the dataset's table.
        table_bytes: size of the table.
        counters_fd: memory of ``StreamCounters``.
        settings: the read settings.
    """

    training: int
    listen_fd: int
    control_fd: int
    table_fd: int
    table_bytes: int
    counters_fd: int
    settings: ReadSettings

    def descriptors(self) -> tuple[int, ...]:
        return self.listen_fd, self.control_fd, self.table_fd, self.counters_fd


def main(config: ReaderConfig) -> None:
    """Reads until the training process closes its socket or ends."""
    keep_freed_memory(64 << 20)
    asyncio.run(_Reader(config).serve())
    os._exit(0)  # does not wait for a file system's thread that hangs


class _Reader:
    def __init__(self, config: ReaderConfig) -> None:
        table = DatasetTable.of_descriptor(config.table_fd, config.table_bytes)
        settings = config.settings
        self._store = ObjectStore(settings, connections=settings.in_flight + _SPARE_CONNECTIONS)
        self._samples = HeldSamples(table, settings, self._store)
        self._counters = StreamCounters(config.counters_fd)
        self._training = config.training
        self._last_counts: dict[str, int] = {}
        self._listener = socket.socket(fileno=config.listen_fd)
        self._control = socket.socket(fileno=config.control_fd)
        self._ended = asyncio.Event()
        self._workers: dict[socket.socket, _Memory] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        self._watch(self._listener, self._accept)
        self._watch(self._control, self._follow)
        while not self._ended.is_set() and os.getppid() == self._training:
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _LOOK_SECONDS)
        await self._store.close()

    def _watch(self, end: socket.socket, act: Callable[[], None]) -> None:
        end.setblocking(False)
        asyncio.get_running_loop().add_reader(end.fileno(), act)

    # ---- the training process ------------------------------------------------------------------

    def _follow(self) -> None:
        """Handles the messages of the training process that have arrived."""
        while (message := _received(self._control)) is not None:
            if not message.fields:
                self._count()
                return
            items, kind = protocol.parse_items(message), message.fields["kind"]
            if kind == protocol.BEGIN:
                self._samples.begin()
            elif kind == protocol.ANNOUNCE:
                self._samples.announce(items)
            elif kind == protocol.GO:
                self._samples.go()
            elif kind == protocol.FORGET:
                self._samples.forget(items)
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._ended.set()

    # ---- workers -------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            _give_up(error)
        if not fd_messages.is_same_user(connection):
            connection.close()
            return
        self._workers[connection] = _Memory()
        self._watch(connection, lambda: self._ask(connection))

    def _ask(self, connection: socket.socket) -> None:
        message = _received(connection)
        if message is None:
            self._drop(connection)
        elif message.fields:
            self._follow()  # handles announcements that were sent before the request
            task = asyncio.get_running_loop().create_task(
                self._answer(connection, protocol.parse_items(message))
            )
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, connection: socket.socket, items: list[int]) -> None:
        began = time.perf_counter()
        samples = await self._samples.take(items)
        waited = time.perf_counter() - began
        if connection not in self._workers:
            return
        memory = self._workers[connection]
        found, errors = [], {}
        needed = sum(len(data) for data in samples.values() if isinstance(data, bytes))
        try:
            fds = memory.grow(needed)
        except objects.SharedMemoryExhausted as error:
            fds, samples = (), dict.fromkeys(samples, error)
        except OSError as error:
            _give_up(error)
        at = 0
        for item, data in samples.items():
            if isinstance(data, bytes):
                memory.view[at : at + len(data)] = data
                found.append(Found(item, at, len(data)))
                at += len(data)
            else:
                errors[item] = data
        answer = ReadAnswer(tuple(found), errors, memory.nbytes if fds else 0)
        self._counters.add("samples", len(found))
        if waited > 1e-3:
            self._counters.add("waited", len(items))
            self._counters.add("wait_seconds", waited)
        self._count()
        try:
            fd_messages.send(connection, answer.message(fds))
        except OSError:  # the worker is gone
            self._drop(connection)
        finally:
            for fd in fds:
                os.close(fd)

    def _drop(self, connection: socket.socket) -> None:
        if self._workers.pop(connection, None) is not None:
            asyncio.get_running_loop().remove_reader(connection.fileno())
            connection.close()

    def _count(self) -> None:
        """Adds the counts since the last call to the shared counters."""
        counts = self._store.counts
        now = {name: getattr(counts, name) for name in counts.__slots__}
        now["on_demand"] = self._samples.on_demand
        for name, value in now.items():
            self._counters.add(name, value - self._last_counts.get(name, 0))
        self._last_counts = now
        self._counters.set("held_bytes", self._samples.nbytes)


def _give_up(error: OSError) -> NoReturn:
    """Ends this process if it can open no more files, since workers would wait for it forever.

    The training process starts another one, and workers repeat their requests.
    """
    print(
        f"the process that reads URLs cannot serve a worker: {error}", file=sys.stderr, flush=True
    )
    os._exit(1)


class _Memory:
    """Memory that one worker maps. Every answer reuses it."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.view = memoryview(bytearray())

    def grow(self, needed: int) -> tuple[int, ...]:
        """Grows to ``needed`` bytes; returns the descriptor of new memory, or nothing."""
        if needed <= self.nbytes:
            return ()
        nbytes = max(_LEAST_MEMORY, 1 << (needed - 1).bit_length())
        fd = objects.create(nbytes, "samples")
        self.nbytes = nbytes
        self.view = memoryview(mmap.mmap(fd, self.nbytes))
        return (fd,)


def _received(connection: socket.socket) -> FdMessage | None:
    """Returns a message; one without fields if none has arrived; ``None`` if the peer closed."""
    try:
        return fd_messages.receive(connection, protocol.MOST_BYTES)
    except BlockingIOError:
        return FdMessage({})
