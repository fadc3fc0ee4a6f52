"""The end that listens: answers the messages of everybody who has the token.

Each connection has a thread, which blocks in the kernel, and no queue: a request is read when the
answer to the one before has been taken. So a peer that does not read costs a thread, and no memory.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from fusionloader.transport import connection, messages
from fusionloader.transport.address import Address
from fusionloader.transport.connection import Connection
from fusionloader.transport.errors import TransportError
from fusionloader.transport.identity import Identity
from fusionloader.transport.messages import Message, Outgoing

log = logging.getLogger("fusionloader.transport")

_BACKLOG = 256
_GREETING_SECONDS = 10.0  # for a stranger to show the token
_PAUSE_SECONDS = 30.0  # within a message
_RETRY_SECONDS = 0.05

Answer = Callable[[Message], Outgoing | None]
"""Returns what is sent back, if anything. Called from the threads of all connections."""


class Listener:
    """Serves from when it is made until ``close()``.

    Attributes:
        address: where it listens, with the port that it got.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        service: str,
        answer: Answer,
        most_connections: int = 1024,
        most_body: int = messages.MOST_BODY,
    ) -> None:
        """Listens at ``address`` for who has the same ``identity`` and ``service``.

        Args:
            address: port 0 is any free one.
            identity: what both ends have.
            service: what it is for, with its version.
            answer: what a message is answered with.
            most_connections: others are closed at once.
            most_body: bytes of the longest body of a request.

        Raises:
            OSError: it cannot listen there.
        """
        here = address.to_listen()
        family = socket.AF_INET6 if ":" in here.host else socket.AF_INET
        try:
            self._socket = socket.create_server(here, family=family, backlog=_BACKLOG)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen at {address}: {error.strerror}") from None
        self.address = Address(address.host, self._socket.getsockname()[1])
        self._identity = identity
        self._service = service
        self._answer = answer
        self._most = most_connections
        self._most_body = most_body
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Connection] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends all connections, and waits for their threads."""
        self._closing.set()
        with self._lock:
            threads = list(self._open)
            for end in self._open.values():
                end.shut()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in (self._thread, *threads):
            thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                raw, _ = self._socket.accept()
            except OSError:  # closed, or whoever came has gone, or there are no descriptors now
                self._closing.wait(_RETRY_SECONDS)
                continue
            thread = threading.Thread(target=self._serve, args=(raw,), daemon=True)
            with self._lock:
                welcome = not self._closing.is_set() and len(self._open) < self._most
                if welcome:
                    self._open[thread] = Connection(raw.dup())
            if welcome:
                thread.start()
            else:
                raw.close()

    def _serve(self, raw: socket.socket) -> None:
        here = threading.current_thread()
        try:
            with contextlib.closing(self._open[here]):  # TLS takes over raw: shut by this one
                end = connection.accept(raw, self._identity, self._service, _GREETING_SECONDS)
                with self._lock:
                    self._open[here] = end
            with contextlib.closing(end):
                self._answer_all(end)
        except TransportError as error:
            log.debug("a connection to %s has ended: the other end %s", self.address, error)
        finally:
            with self._lock:
                del self._open[here]

    def _answer_all(self, end: Connection) -> None:
        while not self._closing.is_set():
            message = end.receive(_PAUSE_SECONDS, None, self._most_body)
            answer = self._answer(message)
            if answer is not None:
                end.send(answer, _PAUSE_SECONDS)
