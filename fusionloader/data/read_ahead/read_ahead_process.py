"""The training process's side of the process that reads URLs: it starts and replaces that process.

The socket for workers is bound here, so it stays open while the process is replaced. Samples that
were announced but not published yet are announced again to the new process. Published samples are
requested by workers, from whichever process is running.
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
_DEAF_SECONDS = 5.0  # a process that starts on a busy machine reads its messages sooner
_FRUITLESS_DEATHS = 3


class ReadAheadProcess:
    """A process that reads a table's URLs ahead of a loader's workers, until ``close()``.

    A thread of the training process replaces it when it dies.

    Attributes:
        files: the ``RemoteFiles`` of workers.
        settings: the read settings.
    """

    def __init__(self, table: DatasetTable, settings: ReadSettings) -> None:
        self.files = StreamFiles(f"fusionloader-stream-{os.getpid()}-{secrets.token_hex(16)}")
        self.settings = settings
        self._table = table
        self._owner = os.getpid()
        listener = fd_messages.listen(self.files.address, _BACKLOG)
        assert listener is not None  # the name is drawn at random
        self._listener = listener
        self._counters = StreamCounters.create()
        self._announced: deque[list[int]] = deque()  # announced, not published
        self._lock = threading.RLock()  # the garbage collector may call close() in any thread
        self._ended = threading.Event()
        self._deaths = 0  # deaths in a row of processes that have read nothing
        self._warned = False  # whether it was logged that no process can be started
        self._process, self._control = self._start()
        self._watch = threading.Thread(
            target=self._replace_when_dead, name="fusionloader-stream-watch", daemon=True
        )
        self._watch.start()

    @property
    def pid(self) -> int | None:
        """Process id of the reader."""
        return self._process.pid

    @property
    def is_own(self) -> bool:
        """Whether this process has started it, and is no forked child of the one that has."""
        return os.getpid() == self._owner

    def stats(self) -> StreamStats:
        """Returns the counts since the first start of the process."""
        return self._counters.stats()

    def begin(self) -> None:
        """Begins another pass: drops all announced samples, and reads nothing until ``go``."""
        with self._lock:
            self._announced.clear()
            self._send(protocol.items_message(protocol.BEGIN, ()))

    def go(self) -> None:
        """Starts reading. Enough samples are announced to form large requests."""
        with self._lock:
            self._send(protocol.items_message(protocol.GO, ()))

    def announce(self, items: Sequence[int]) -> None:
        """Announces the samples of one mini-batch, in the order in which workers will use them."""
        with self._lock:
            self._announced.append(list(items))
            self._tell(protocol.ANNOUNCE, items)

    def published(self) -> None:
        """Marks the oldest announced mini-batch as published: workers may request its samples."""
        with self._lock:
            if self._announced:
                self._announced.popleft()

    def forget(self, items: Sequence[int]) -> None:
        """Drops samples that no worker will request any more."""
        with self._lock:
            self._tell(protocol.FORGET, items)

    def close(self) -> None:
        """Ends the process, and refuses later requests of workers."""
        if not self.is_own:
            return
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
            self._control.close()
            self._refuse_workers()
            process = self._process
        processes.end([process], _END_SECONDS)
        if threading.current_thread() is not self._watch:
            self._watch.join(_END_SECONDS)
        self._counters.close()

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
            if self._ended.is_set():  # by this thread, meanwhile
                control.close()
                processes.end([process], _END_SECONDS)
                return
            self._control.close()
            self._process, self._control = process, control
            self._counters.add("restarts", 1)
            self._send(protocol.items_message(protocol.BEGIN, ()))
            for items in self._announced:
                self._tell(protocol.ANNOUNCE, items)
            self._send(protocol.items_message(protocol.GO, ()))

    def _refuse_workers(self) -> None:
        """Shuts the socket down, also in forked workers, and closes connections in its queue."""
        self._listener.setblocking(False)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
            while True:
                self._listener.accept()[0].close()
        self._listener.close()

    def _start(self) -> tuple[BareProcess, socket.socket]:
        requests = self._counters.stats().requests
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_DEAF_SECONDS)
        with theirs:
            config = ReaderConfig(
                os.getpid(),
                self._listener.fileno(),
                theirs.fileno(),
                self._table.fd,
                self._table.nbytes,
                self._counters.fd,
                self.settings,
            )
            where = "fusionloader.data.read_ahead.reader"
            process = BareProcess(where, config, config.descriptors())
        self._requests_before = requests
        return process, ours

    def _tell(self, kind: str, items: Sequence[int]) -> None:
        for at in range(0, len(items), protocol.MOST_ITEMS):
            some = items[at : at + protocol.MOST_ITEMS]
            self._send(protocol.items_message(kind, some))

    def _send(self, message: FdMessage) -> None:
        # A dead or stopped process misses messages: its samples are read on demand. Training waits
        # for a stopped one only once.
        with contextlib.suppress(OSError):
            try:
                fd_messages.send(self._control, message)
                self._control.settimeout(_DEAF_SECONDS)
            except TimeoutError:
                self._control.setblocking(False)
