"""The end that listens: answers the messages of everybody who has the token.

There may be several services at one port; a client says which it wants when it connects. Each
connection has a thread, which blocks in the kernel, and no queue: a request is read when the answer
to the one before has been taken. So a peer that does not read costs a thread, and no memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
"""Returns what is sent back, if anything. Called by the thread of a connection."""


@dataclass(frozen=True, slots=True)
class Service:
    """What connections are for.

    Attributes:
        begin: returns what answers the messages of a connection that has begun. Called by the
            threads of all connections.
        most_body: bytes of the longest body of a request.
    """

    begin: Callable[[], Answer]
    most_body: int = messages.MOST_BODY


class Listener:
    """Serves from when it is made until ``close()``.

    Attributes:
        address: where it listens, with the port that it got.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        services: Mapping[str, Service],
        most_connections: int = 1024,
    ) -> None:
        """Listens at ``address`` for who has the same ``identity`` and wants one of ``services``.

        Args:
            address: port 0 is any free one.
            identity: what both ends have.
            services: by name, which has the service's version.
            most_connections: others are closed at once.

        Raises:
            OSError: it cannot listen there.
        """
        here = address.to_listen()
        family = socket.AF_INET6 if ":" in here.host else socket.AF_INET
        try:
            self._socket = socket.create_server(here, family=family, backlog=_BACKLOG)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(error.errno, f"cannot listen at {address}: {why}") from None
        self.address = Address(address.host, self._socket.getsockname()[1])
        self._identity = identity
        self._services = services
        self._most = most_connections
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Connection] = {}
        self._busy: set[threading.Thread] = set()
        self._idle = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)
        self._thread.start()

    def wait_until_answered(self, timeout: float) -> bool:
        """Waits until no message is being answered; ``False`` if one still is after ``timeout``.

        Services that go on answering may keep it from ever coming to that.
        """
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, timeout)

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
                end, name = connection.accept(
                    raw, self._identity, self._services, _GREETING_SECONDS
                )
                with self._lock:
                    self._open[here] = end
            with contextlib.closing(end):
                self._answer_all(end, self._services[name])
        except TransportError as error:
            log.debug("a connection to %s has ended: the other end %s", self.address, error)
        finally:
            with self._idle:
                del self._open[here]
                self._ended(here)

    def _answer_all(self, end: Connection, service: Service) -> None:
        here = threading.current_thread()
        answer = service.begin()
        while not self._closing.is_set():
            message = end.receive(_PAUSE_SECONDS, None, service.most_body)
            with self._lock:
                self._busy.add(here)
            outgoing = answer(message)
            if outgoing is not None:
                end.send(outgoing, _PAUSE_SECONDS)
            with self._idle:
                self._ended(here)

    def _ended(self, answering: threading.Thread) -> None:
        self._busy.discard(answering)
        if not self._busy:
            self._idle.notify_all()
