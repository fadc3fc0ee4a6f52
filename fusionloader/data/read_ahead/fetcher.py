"""The worker's client of the process that reads URLs. It requests one tiny-batch at a time."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fusionloader.cache.remote_files import BroughtFile, RangeOf
from fusionloader.data.read_ahead import protocol
from fusionloader.data.read_ahead.protocol import ReadAnswer
from fusionloader.data.sources.url_errors import UrlUnreadable
from fusionloader.system import fd_messages

_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 0.5  # how often a waiting worker checks that the training process is alive
_PAUSE_SECONDS = 0.05
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class StreamFiles:
    """A ``RemoteFiles`` that connects to the process that reads URLs.

    Attributes:
        address: name of its socket in the abstract namespace.
    """

    address: str

    def open(self, identity_fd: int, range_of: RangeOf) -> StreamFetcher:
        return StreamFetcher(self.address, range_of)


class StreamFetcher:
    """Requests samples from the reading process. For one process and one thread.

    If the reading process dies, its replacement listens at the same address and gets the request
    again.
    """

    def __init__(self, address: str, range_of: RangeOf) -> None:
        self._address, self._range_of = address, range_of
        self._connection: socket.socket | None = None
        self._memory = memoryview(b"")
        self._errors: dict[int, Exception] = {}
        self._training = os.getppid()

    def bring(self, items: Iterable[int]) -> list[BroughtFile]:
        """Returns the bytes of samples, without those that cannot be read.

        The bytes are valid until the next call.
        """
        wanted = list(dict.fromkeys(items))
        began = time.perf_counter()
        try:
            answer = self._ask(wanted)
        except OSError as error:
            self._errors = {item: self._unreadable(item, str(error)) for item in wanted}
            return []
        if answer is None:
            return []
        self._errors = answer.errors
        seconds = (time.perf_counter() - began) / max(1, len(answer.found))
        return [
            BroughtFile(
                each.item,
                each.nbytes,
                0,
                self._memory[each.offset : each.offset + each.nbytes],
                False,
                seconds,
            )
            for each in answer.found
        ]

    def read(self, item: int) -> bytes:
        """Returns one sample's bytes.

        Raises:
            UrlUnreadable: the read failed; the message has URL, status, attempts and remedy.
            ShardChanged: the file is not the one that was indexed.
        """
        if (known := self._errors.pop(item, None)) is not None:
            raise known
        for brought in self.bring([item]):
            return bytes(brought.data)
        if (found := self._errors.pop(item, None)) is not None:
            raise found
        raise self._unreadable(
            item,
            f"the process that reads it has not answered for {_PATIENCE_SECONDS:.0f} s; see what "
            "the training process logs about it",
        )

    def _unreadable(self, item: int, why: str) -> UrlUnreadable:
        where = self._range_of(item)
        last = where.offset + where.nbytes - 1
        return UrlUnreadable(
            f"{where.file!r}, bytes {where.offset} to {last} cannot be read: {why}"
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, items: list[int]) -> ReadAnswer | None:
        """Returns the answer, if need be of a replaced process; ``None`` after a timeout.

        Raises:
            OSError: this process may open no more files.
        """
        request = protocol.items_message("take", items)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and os.getppid() == self._training:
            connection = self._connected()
            if connection is None:
                time.sleep(_PAUSE_SECONDS)  # the process is being replaced
                continue
            try:
                with _unless_files_run_out():
                    fd_messages.send(connection, request)
                    if (answer := self._answer(connection)) is not None:
                        return answer
                # The kernel drops the descriptor of an answer that this process may not open, and
                # the answer looks like one that is cut off.
                os.close(os.dup(connection.fileno()))
            except BaseException:
                # Its next answer would be that of this request, or lie in memory that was not
                # mapped, and be looked for in an earlier connection's.
                self.close()
                raise
            self.close()
        return None

    def _connected(self) -> socket.socket | None:
        if self._connection is None:
            with _unless_files_run_out():
                self._connection = fd_messages.connect_to_own(self._address, _CONNECT_SECONDS)
        return self._connection

    def _answer(self, connection: socket.socket) -> ReadAnswer | None:
        """Waits for the answer while both processes live; requests to servers have timeouts."""
        connection.settimeout(_LOOK_SECONDS)
        while os.getppid() == self._training:
            try:
                message = fd_messages.receive(connection, protocol.MOST_BYTES)
            except TimeoutError:
                continue
            if message is None:
                return None
            with contextlib.closing(message):
                answer = ReadAnswer.from_message(message)
                if answer.memory:
                    self._memory = memoryview(mmap.mmap(message.fds[0], answer.memory))
            return answer
        return None


@contextlib.contextmanager
def _unless_files_run_out() -> Iterator[None]:
    """Suppresses errors of a connection, but not that this process may open no more files."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
