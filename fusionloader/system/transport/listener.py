"""The end that listens: it answers messages of clients that have the token.

There may be several services at one port; a client names one when it connects. Each connection has
a thread, which blocks in the kernel, and no queue: a request is read after the answer to the
previous one was sent. So a client that does not read costs a thread, but no memory.

A client that has not shown the token yet is a stranger. If there is no place, no descriptor or no
thread for a new connection, the oldest stranger is closed. So silent strangers cannot keep clients
out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fusionloader.system.transport import connection, messages
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import Connection
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import Message, Outgoing

log = logging.getLogger("fusionloader.transport")

_BACKLOG = 256
_GREETING_SECONDS = 10.0  # timeout for a stranger to show the token
_PAUSE_SECONDS = 30.0  # longest pause within a message
_RETRY_SECONDS = 0.05

Answer = Callable[[Message], Outgoing | None]
"""Returns the answer to a message, if it has one. Called by the thread of a connection."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service at a listener.

    Attributes:
        begin: returns the function that answers the messages of a new connection. Called by the
            threads of all connections.
        most_body: most bytes of a request's body.
    """

    begin: Callable[[], Answer]
    most_body: int = messages.MOST_BODY


class Listener:
    """Serves from construction until ``close()``.

    Attributes:
        address: address that it listens at, with the actual port.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        services: Mapping[str, Service],
        most_connections: int = 1024,
    ) -> None:
        """Listens at ``address``.

        Args:
            address: address; port 0 means any free port.
            identity: identity that both ends share.
            services: services by name, which includes the version.
            most_connections: most connections at a time, with strangers; at most half of the
                descriptors that the process may open.

        Raises:
            OSError: it cannot listen there.
        """
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            most_connections = max(1, min(most_connections, descriptors // 2))
        self._context = identity.for_server  # made now, while there are descriptors: it opens files
        here = address.to_listen()
        family = socket.AF_INET6 if ":" in here.host else socket.AF_INET
        try:
            self._socket = socket.create_server(here, family=family, backlog=_BACKLOG)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(error.errno, f"cannot listen at {address}: {why}") from None
        self.address = Address(address.host, self._socket.getsockname()[1])
        self._services = services
        self._most = most_connections
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Connection] = {}
        self._strangers: dict[threading.Thread, Connection] = {}  # part of these, oldest first
        self._busy: set[threading.Thread] = set()
        self._changed = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)
        self._thread.start()

    def wait_until_answered(self, timeout: float) -> bool:
        """Waits until no message is being answered; returns ``False`` after ``timeout`` seconds.

        On a busy listener that moment may never come.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout)

    def close(self) -> None:
        """Ends all connections, and waits for their threads."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()  # no new threads after this
        with self._lock:
            threads = list(self._open)
            for end in self._open.values():
                end.shut()
        for thread in threads:
            thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                raw, _ = self._socket.accept()
                self._begin(connection.secured(raw, self._context, is_server=True))
            except TransportError:  # the peer has gone
                continue
            except Exception as error:  # closing, or out of descriptors, threads or memory
                log.debug("%s cannot take a connection: %s", self.address, error)
                self._close_first_stranger()
                self._closing.wait(_RETRY_SECONDS)

    def _begin(self, end: Connection) -> None:
        thread = threading.Thread(target=self._serve, args=(end,), daemon=True)
        if len(self._open) >= self._most:
            self._close_first_stranger()
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._open) < self._most, _RETRY_SECONDS):
                end.close()
                return
            self._open[thread] = self._strangers[thread] = end
        try:
            thread.start()
        except BaseException:
            self._forget(thread)
            raise

    def _close_first_stranger(self) -> None:
        with self._lock:
            if self._strangers:
                self._strangers.pop(next(iter(self._strangers))).shut()

    def _serve(self, end: Connection) -> None:
        here = threading.current_thread()
        try:
            end.authenticate(_GREETING_SECONDS)
            with self._lock:
                self._strangers.pop(here, None)
            name = connection.greet(end, self._services, _GREETING_SECONDS)
            self._answer_all(end, self._services[name])
        except TransportError as error:
            log.debug("a connection to %s has ended: the other end %s", self.address, error)
        finally:
            self._forget(here)

    def _forget(self, thread: threading.Thread) -> None:
        with self._changed:
            self._open.pop(thread).close()  # under the lock, as shut() is
            self._strangers.pop(thread, None)
            self._busy.discard(thread)
            self._changed.notify_all()

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
            del message, outgoing  # they may hold what is closed while this thread waits
            with self._changed:
                self._busy.discard(here)
                self._changed.notify_all()
