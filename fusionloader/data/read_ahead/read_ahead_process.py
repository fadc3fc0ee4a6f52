"""The training process's side of the process that reads URLs: started, told what comes, replaced.

The socket that workers connect to is bound here, so that it stays while the process is replaced.
What was announced and not published yet is announced again to the next process; what was published
is asked for by workers, whoever answers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.read_ahead import protocol
from fusionloader.data.read_ahead.counters import StreamCounters, StreamStats
from fusionloader.data.read_ahead.fetcher import StreamFiles
from fusionloader.data.read_ahead.reader import ReaderConfig
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.system import fd_messages, processes
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.processes import BareProcess

log = logging.getLogger("fusionloader.streams")

_BACKLOG = 1024
_END_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_FRUITLESS_DEATHS = 3


class ReadAheadProcess:
    """Reads a table's URLs ahead of a loader's workers, from when it is made until ``close()``.

    Attributes:
        files: what workers reach it through.
        settings: how it reads.
    """

    def __init__(self, table: DatasetTable, settings: ReadSettings) -> None:
        """Starts the process."""
        self.files = StreamFiles(f"fusionloader-stream-{os.getpid()}-{secrets.token_hex(16)}")
        self.settings = settings
        self._table = table
        self._owner = os.getpid()
        listener = fd_messages.listen(self.files.address, _BACKLOG)
        assert listener is not None  # the name is drawn at random
        self._listener = listener
        self._counters_fd, self._counters = StreamCounters.create()
        self._announced: deque[list[int]] = deque()  # and not published
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._deaths = 0  # of processes that have read nothing
        self._warned = False  # that the next one cannot be started
        self._process, self._control = self._start()
        self._watch = threading.Thread(
            target=self._replace_when_dead, name="fusionloader-stream-watch", daemon=True
        )
        self._watch.start()

    @property
    def pid(self) -> int | None:
        """Of the process that reads now."""
        return self._process.pid

    def stats(self) -> StreamStats:
        """Returns what was read since the process was first started."""
        return self._counters.stats()

    def begin(self) -> None:
        """Drops what was announced: another pass begins, and nothing is read until ``go``."""
        with self._lock:
            self._announced.clear()
            self._send(protocol.items_message(protocol.BEGIN, ()))

    def go(self) -> None:
        """Has what was announced read: it is enough to tell what is read together."""
        with self._lock:
            self._send(protocol.items_message(protocol.GO, ()))

    def announce(self, items: Sequence[int]) -> None:
        """Notes samples that workers will want, behind all announced before."""
        with self._lock:
            self._announced.append(list(items))
            self._tell(items)

    def published(self) -> None:
        """Notes that workers may ask for what was announced first of what is not published."""
        with self._lock:
            if self._announced:
                self._announced.popleft()

    def forget(self, items: Sequence[int]) -> None:
        """Drops samples that no worker will want any more."""
        with self._lock:
            for at in range(0, len(items), protocol.MOST_ITEMS):
                some = items[at : at + protocol.MOST_ITEMS]
                self._send(protocol.items_message(protocol.FORGET, some))

    def close(self) -> None:
        """Ends the process; workers that still ask are refused."""
        with self._lock:
            if self._ended.is_set() or os.getpid() != self._owner:
                return
            self._ended.set()
            self._control.close()
            self._refuse_workers()
            process = self._process
        processes.end([process], _END_SECONDS)
        self._watch.join(_END_SECONDS)
        os.close(self._counters_fd)

    def _replace_when_dead(self) -> None:
        while not self._ended.is_set():
            self._process.join(_LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        with self._lock:
            if self._ended.is_set() or self._process.is_alive():
                return
            manner = processes.describe_exit(self._process.exitcode)
            fruitful = self.stats().requests > self._requests_before
            deaths = 0 if fruitful else self._deaths + 1
            if deaths >= _FRUITLESS_DEATHS:
                log.error(
                    "the process that reads URLs %s, three times before it read anything: workers "
                    "that wait for it fail",
                    manner,
                )
                self._control.close()
                self._ended.set()
                self._refuse_workers()
                return
            try:
                process, control = self._start()
            except OSError as error:
                if not self._warned:
                    log.warning(
                        "the process that reads URLs %s, and no other can be started now; it is "
                        "tried again: %s",
                        *(manner, error),
                    )
                self._warned = True
                return
            log.warning("the process that reads URLs %s; it is replaced", manner)
            self._deaths, self._warned = deaths, False
            self._control.close()
            self._process, self._control = process, control
            self._counters.add("restarts", 1)
            self._send(protocol.items_message(protocol.BEGIN, ()))
            for items in self._announced:
                self._tell(items)
            self._send(protocol.items_message(protocol.GO, ()))

    def _refuse_workers(self) -> None:
        """Ends the socket, which forked workers have open, too, and connections that wait there."""
        self._listener.setblocking(False)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
            while True:
                self._listener.accept()[0].close()
        self._listener.close()

    def _start(self) -> tuple[BareProcess, socket.socket]:
        requests = self._counters.stats().requests
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            config = ReaderConfig(
                os.getpid(),
                self._listener.fileno(),
                theirs.fileno(),
                self._table.fd,
                self._table.nbytes,
                self._counters_fd,
                self.settings,
            )
            where = "fusionloader.data.read_ahead.reader"
            process = BareProcess(where, config, config.descriptors())
        self._requests_before = requests
        return process, ours

    def _tell(self, items: Sequence[int]) -> None:
        for at in range(0, len(items), protocol.MOST_ITEMS):
            some = items[at : at + protocol.MOST_ITEMS]
            self._send(protocol.items_message(protocol.ANNOUNCE, some))

    def _send(self, message: FdMessage) -> None:
        # A process that is dead or stopped is not waited for: what it is not told of is read when
        # workers want it.
        with contextlib.suppress(OSError):
            fd_messages.send(self._control, message)
