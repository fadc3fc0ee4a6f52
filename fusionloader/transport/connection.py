"""A connection between two processes that have the same token.

Both ends show a certificate by TLS 1.3 and say which service they are for. Beyond this machine all
that follows is encrypted. Between two loopback addresses TLS ends there: nobody but root could read
or write that connection, and encryption would be most of a message's cost.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Collection, Iterator
from typing import Any

from fusionloader.transport import messages
from fusionloader.transport.address import Address, is_loopback
from fusionloader.transport.errors import TransportError
from fusionloader.transport.identity import Identity
from fusionloader.transport.messages import Message, Outgoing

_KEEP_ALIVE = {  # seconds, but for the last: a machine that is gone is noticed within a minute
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
}
_LONGEST_NAME = 200  # of what a peer says that it is


class Connection:
    """One end of an authenticated connection. Not for several threads at once."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._encrypted = isinstance(connected, ssl.SSLSocket)
        self._buffer = memoryview(bytearray(messages.HEADER_BYTES))

    @property
    def encrypted(self) -> bool:
        """Whether what is sent can be read by those in between."""
        return self._encrypted

    def fileno(self) -> int:
        """Returns the descriptor, readable when a message begins."""
        return self._socket.fileno()

    def send(self, message: Outgoing, timeout: float | None) -> None:
        """Sends a message whole.

        Raises:
            TransportError: the peer is gone, or has not taken it within ``timeout`` seconds.
        """
        parts = [messages.pack(message), *message.body]
        with _as_transport_errors():
            self._wait(timeout)
            for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
                if self._encrypted:
                    self._socket.sendall(part)
                else:
                    self._socket.sendall(part, socket.MSG_MORE if left else 0)

    def receive(
        self,
        timeout: float | None,
        begin: float | None = None,
        most_body: int = messages.MOST_BODY,
    ) -> Message:
        """Returns the next message; its body is valid until the one after it.

        Args:
            timeout: seconds that the peer may pause within the message.
            begin: seconds until its first bytes are there, ``None`` for any time.
            most_body: bytes that the body may have.

        Raises:
            TransportError: the peer is gone, silent, or does not send messages.
        """
        with _as_transport_errors():
            self._wait(begin)
            header = self._read(messages.HEADER_BYTES)
            self._wait(timeout)
            lengths = messages.unpack(header, most_body)
            head = bytes(self._read(lengths.head))
            return Message(lengths.kind, head, self._read(lengths.body))

    def _wait(self, seconds: float | None) -> None:
        if self._socket.gettimeout() != seconds:  # to set it is a system call
            self._socket.settimeout(seconds)

    def _read(self, nbytes: int) -> memoryview:
        if len(self._buffer) < nbytes:
            self._buffer = memoryview(bytearray(nbytes))
        wanted = self._buffer[:nbytes]
        done = 0
        while done < nbytes:
            count = self._socket.recv_into(wanted[done:])
            if count == 0:
                raise TransportError("has closed the connection")
            done += count
        return wanted

    def shut(self) -> None:
        """Ends it from another thread, which is woken where it waits."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes it."""
        self._socket.close()

    def decrypt_no_more(self) -> None:
        """Ends TLS, once both ends have agreed to; the connection goes on in the clear."""
        if isinstance(self._socket, ssl.SSLSocket):
            with _as_transport_errors():
                raw = self._socket.unwrap()
                self._socket = socket.socket(fileno=raw.detach())
            self._socket.setblocking(True)  # as the new object believes that it is
            self._encrypted = False


def connect(address: Address, identity: Identity, service: str, timeout: float) -> Connection:
    """Returns a connection to what listens at ``address``.

    Args:
        address: where it listens.
        identity: what both ends have.
        service: what both ends are for, with its version.
        timeout: seconds for each step.

    Raises:
        TransportError: nothing listens there, or nothing that has this token and this service.
    """
    with _as_transport_errors():
        raw = socket.create_connection(address, timeout)
    with _closed_on_error(raw, identity.for_client, timeout, is_server=False) as greeting:
        greeting.say(service)
        theirs = greeting.hear()
        if theirs != service:
            raise TransportError(f"is {theirs!r}, not {service!r}")
        return greeting.ended()


def accept(
    raw: socket.socket, identity: Identity, services: Collection[str], timeout: float
) -> tuple[Connection, str]:
    """Returns the other end of ``connect``, and which of ``services`` it is for.

    Raises:
        TransportError: who has connected has not this token, or wants another service; it is told
            which there are.
    """
    with _closed_on_error(raw, identity.for_server, timeout, is_server=True) as greeting:
        wanted = greeting.hear()
        if wanted not in services:
            greeting.say(", ".join(services))
            raise TransportError(f"is {wanted!r}, none of {', '.join(map(repr, services))}")
        greeting.say(wanted)
        return greeting.ended(), wanted


class _Greeting:
    """Both ends say which service they are for, and whether they see a loopback address."""

    def __init__(self, connection: Connection, loopback: bool, timeout: float) -> None:
        self._connection = connection
        self._loopback = loopback
        self._timeout = timeout
        self._both = False

    def say(self, service: str) -> None:
        mine = {"service": service, "loopback": self._loopback}
        greeting = Outgoing(messages.HELLO, json.dumps(mine).encode())
        self._connection.send(greeting, self._timeout)

    def hear(self) -> str:
        theirs = _hello(self._connection.receive(self._timeout, self._timeout, 0))
        self._both = self._loopback and theirs.get("loopback") is True
        return str(theirs.get("service"))[:_LONGEST_NAME]

    def ended(self) -> Connection:
        if self._both:
            self._connection.decrypt_no_more()
        return self._connection


@contextlib.contextmanager
def _closed_on_error(
    raw: socket.socket, context: ssl.SSLContext, timeout: float, is_server: bool
) -> Iterator[_Greeting]:
    secured = raw
    try:
        with _as_transport_errors():
            raw.settimeout(timeout)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE.items():
                raw.setsockopt(socket.IPPROTO_TCP, option, value)
            loopback = is_loopback(raw)
            secured = context.wrap_socket(raw, server_side=is_server)
        yield _Greeting(Connection(secured), loopback, timeout)
    except BaseException:
        secured.close()
        raise


def _hello(message: Message) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(message.head)
        if message.kind == messages.HELLO and isinstance(found, dict):
            return found
    raise TransportError("does not say which service it is")


@contextlib.contextmanager
def _as_transport_errors() -> Iterator[None]:
    """Says what goes wrong as the peer's doing."""
    try:
        yield
    except OSError as error:
        raise TransportError(_reason(error)) from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "does not answer in time"
    if isinstance(error, (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)):
        return "has closed the connection"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "has another token"
    if isinstance(error, ssl.SSLError):
        alert = "alert" in str(error).lower()
        return "refuses this token" if alert else f"does not speak TLS as expected ({error.reason})"
    if isinstance(error, socket.gaierror):
        return f"has a name that is not known here ({error.strerror})"
    return f"cannot be reached ({error.strerror or error})"
