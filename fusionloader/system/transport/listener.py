"""The end that listens: answers the messages of everybody who has the token.

There may be several services at one port; a client says which it wants when it connects. Each
connection has a thread, which blocks in the kernel, and no queue: a request is read when the answer
to the one before has been taken. So a peer that does not read costs a thread, and no memory.

A peer that has not shown the token yet is a stranger. Where there is no place, no descriptor or no
thread for a new connection, the stranger that came first is closed, so strangers that stay silent
keep nobody out.
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
            most_connections: at a time, strangers included; no more than half of the
                descriptors that the process may open.

        Raises:
            OSError: it cannot listen there.
        """
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            most_connections = max(1, min(most_connections, descriptors // 2))
        self._context = identity.for_server  # now: to make it opens files
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
        self._strangers: dict[threading.Thread, Connection] = {}  # of these, in the order they came
        self._busy: set[threading.Thread] = set()
        self._changed = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)
        self._thread.start()

    def wait_until_answered(self, timeout: float) -> bool:
        """Waits until no message is being answered; ``False`` if one still is after ``timeout``.

        Services that go on answering may keep it from ever coming to that.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout)

    def close(self) -> None:
        """Ends all connections, and waits for their threads."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()  # from here on there are no new threads
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
            except Exception as error:  # closed; or no descriptor, thread or memory now
                log.debug("%s cannot take a connection: %s", self.address, error)
                self._close_first_stranger()
                self._closing.wait(_RETRY_SECONDS)

    def _begin(self, end: Connection) -> None:
        """Gives a connection a thread, or closes it."""
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
            self._open.pop(thread).close()  # under the lock: nobody shuts it any more
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
            with self._changed:
                self._busy.discard(here)
                self._changed.notify_all()
