"""Authenticated connections between two processes that have the same token.

Both ends show a certificate by TLS 1.3, and name their service. Between machines, all that follows
is encrypted. Between two loopback addresses, TLS ends after that, because only root could read or
write the connection, and encryption would be most of a message's cost.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Collection, Sequence
from typing import Any

from fusionloader.system.transport import messages
from fusionloader.system.transport.address import Address, is_loopback
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import Beginning, Message, Outgoing

_KEEP_ALIVE = {  # two in seconds and a count: a machine that is gone is noticed within a minute
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
}
_AHEAD_BYTES = 4096
_FIRST_BYTES = 1 << 20  # first size of the buffer for a long message, which grows as bytes arrive
_JOINED_BYTES = 1 << 14  # messages up to this size are joined and sent by one call
_PIECE_BYTES = 1 << 18  # sent by a call of TLS, whose timeout is for all of them
_LIMIT = struct.Struct("@ll")  # seconds and microseconds; zero means no limit
_MOST_PLACES = 1024  # most buffers in a system call, Linux's UIO_MAXIOV
_LONGEST_NAME = 200  # characters of a peer's service name that are used


class Connection:
    """One end of an authenticated connection. Only one thread at a time may use it.

    Attributes:
        is_loopback: whether both ends are loopback addresses of this machine.
    """

    is_loopback = False

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._encrypted = isinstance(connected, ssl.SSLSocket)
        self._seconds: float | None = -1.0  # the timeout that is set; -1.0: unknown
        self._buffer = memoryview(b"")
        # Bytes that were read beyond the request, so that a short message takes one system call.
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._begin = self._end = 0

    @property
    def encrypted(self) -> bool:
        return self._encrypted

    @property
    def buffered_bytes(self) -> int:
        """Size of a message that is sent without waiting for the peer, once it has read others."""
        # The system counts its own overhead, too, and keeps half of the buffer for that.
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2

    def fileno(self) -> int:
        """Returns the descriptor, which is readable when an answer begins.

        That holds if at most one answer is expected: others may have been read ahead.
        """
        return self._socket.fileno()

    def send(self, message: Outgoing, timeout: float | None) -> None:
        """Sends a whole message.

        Raises:
            TransportError: the peer is gone, or has read nothing for ``timeout`` seconds.
        """
        parts = [messages.pack(message), *message.body]
        with _AS_TRANSPORT_ERRORS:
            self._wait(timeout)
            if sum(map(len, parts)) <= _JOINED_BYTES:
                self._socket.sendall(b"".join(parts))
                return
            for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
                if self._encrypted:
                    for start in range(0, len(part), _PIECE_BYTES):
                        self._socket.sendall(memoryview(part)[start : start + _PIECE_BYTES])
                else:
                    self._socket.sendall(part, socket.MSG_MORE if left else 0)

    def receive(
        self, timeout: float | None, begin: float | None = None, most_body: int = messages.MOST_BODY
    ) -> Message:
        """Returns the next message. Its body is valid until the next call.

        Args:
            timeout: longest pause within the message, in seconds.
            begin: longest wait for the first bytes, in seconds; ``None`` for no limit.
            most_body: most bytes of the body.

        Raises:
            TransportError: the peer is gone, silent, or does not send messages.
        """
        beginning = self.receive_beginning(timeout, begin, most_body)
        return Message(beginning.kind, beginning.head, self.receive_rest(beginning, timeout))

    def receive_beginning(
        self, timeout: float | None, begin: float | None = None, most_body: int = messages.MOST_BODY
    ) -> Beginning:
        """Returns the next message without its body.

        ``receive_rest`` or ``receive_body`` must follow. See ``receive`` for arguments and errors.
        """
        with _AS_TRANSPORT_ERRORS:
            self._read_ahead(messages.HEADER_BYTES, begin)
            kind, head, body = messages.unpack(
                self._read(messages.HEADER_BYTES, timeout), most_body
            )
            return Beginning(kind, bytes(self._read(head, timeout)), body)

    def receive_rest(self, beginning: Beginning, timeout: float | None) -> memoryview:
        """Returns the body of a message, which is valid until the next message.

        Raises:
            TransportError: the peer is gone or silent.
        """
        with _AS_TRANSPORT_ERRORS:
            return self._read(beginning.body_bytes, timeout)

    def receive_body(self, places: Sequence[memoryview], timeout: float | None) -> None:
        """Reads a body into several buffers in turn, whose total size is that of the body.

        Raises:
            TransportError: the peer is gone or silent.
        """
        with _AS_TRANSPORT_ERRORS:
            rest = list(places)
            while rest:
                self._wait(timeout)
                done = self._fill(rest)
                while rest and done >= len(rest[0]):
                    done -= len(rest.pop(0))
                if done:
                    rest[0] = rest[0][done:]

    def _fill(self, places: list[memoryview]) -> int:
        """Reads into buffers in turn, as much as one call returns; returns the number of bytes."""
        begin, first = self._begin, places[0]
        done = min(len(first), self._end - begin)
        if done:
            first[:done] = self._ahead[begin : begin + done]
            self._begin += done
            return done
        if self._encrypted:
            return self._received(first, 0)
        done = self._socket.recvmsg_into(places[:_MOST_PLACES], 0, socket.MSG_WAITALL)[0]
        if done == 0:
            raise TransportError("has closed the connection")
        return done

    def _wait(self, seconds: float | None) -> None:
        """Sets the timeout of the next calls, if it differs: setting it is a system call."""
        if seconds == self._seconds:
            return
        self._seconds = seconds
        if self._encrypted:
            self._socket.settimeout(seconds)
            return
        # With Python's own timeouts, each call would be two system calls, and MSG_WAITALL would
        # not wait for all bytes.
        limit = _LIMIT.pack(*divmod(round((seconds or 0) * 1e6), 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    def _read_ahead(self, nbytes: int, seconds: float | None) -> None:
        """Reads until at least ``nbytes`` are buffered."""
        if self._end - self._begin >= nbytes:
            return
        left = bytes(self._ahead[self._begin : self._end])
        self._ahead[: len(left)] = left
        self._begin, self._end = 0, len(left)
        self._wait(seconds)
        while self._end < nbytes:
            self._end += self._received(self._ahead[self._end :], 0)

    def _read(self, nbytes: int, seconds: float | None) -> memoryview:
        begin = self._begin
        done = min(nbytes, self._end - begin)
        self._begin += done
        if done == nbytes:
            return self._ahead[begin : begin + nbytes]
        first = min(nbytes, _FIRST_BYTES)
        if len(self._buffer) < first:
            self._buffer = memoryview(bytearray(first))
        self._buffer[:done] = self._ahead[begin : begin + done]
        self._wait(seconds)
        flags = 0 if self._encrypted else socket.MSG_WAITALL
        while done < nbytes:
            if done == len(self._buffer):  # grow with the bytes, not by the announced length
                grown = memoryview(bytearray(min(nbytes, 4 * done)))
                grown[:done] = self._buffer
                self._buffer = grown
            done += self._received(self._buffer[done:nbytes], flags)
        return self._buffer[:nbytes]

    def _received(self, into: memoryview, flags: int) -> int:
        count = self._socket.recv_into(into, 0, flags)
        if count == 0:
            raise TransportError("has closed the connection")
        return count

    def shut(self) -> None:
        """Ends the connection from another thread, and wakes the thread that waits in it."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def authenticate(self, timeout: float) -> None:
        """Exchanges certificates with the peer, within ``timeout`` seconds.

        Raises:
            TransportError: the peer is gone, silent, or does not have the token.
        """
        with _AS_TRANSPORT_ERRORS:
            assert isinstance(self._socket, ssl.SSLSocket)
            self._socket.settimeout(timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE.items():
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
            self.is_loopback = is_loopback(self._socket)
            self._socket.do_handshake()

    def decrypt_no_more(self) -> None:
        """Ends TLS after both ends have agreed to it. The connection continues unencrypted."""
        if isinstance(self._socket, ssl.SSLSocket):
            with _AS_TRANSPORT_ERRORS:
                raw = self._socket.unwrap()
                self._socket = socket.socket(fileno=raw.detach())
            self._socket.setblocking(True)  # the new object assumes so
            self._encrypted = False
            self._seconds = -1.0


def connect(address: Address, identity: Identity, service: str, timeout: float) -> Connection:
    """Connects to the service that listens at ``address``.

    Args:
        address: address of the listener.
        identity: identity that both ends share.
        service: name of the service, with its version.
        timeout: seconds for each step.

    Raises:
        TransportError: nothing listens there, or the listener has another token or service.
    """
    with _AS_TRANSPORT_ERRORS:
        raw = socket.create_connection(address, timeout)
    end = secured(raw, identity.for_client, is_server=False)
    try:
        end.authenticate(timeout)
        greeting = _Greeting(end, timeout)
        greeting.say(service)
        theirs = greeting.hear()
        if theirs != service:
            raise TransportError(f"is {theirs!r}, not {service!r}")
        greeting.finish()
    except BaseException:
        end.close()
        raise
    return end


def secured(raw: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> Connection:
    """Returns a connection over a socket, before anything is sent or received.

    Raises:
        TransportError: the peer is gone.
    """
    try:
        with _AS_TRANSPORT_ERRORS:
            return Connection(
                context.wrap_socket(raw, server_side=is_server, do_handshake_on_connect=False)
            )
    except BaseException:
        raw.close()
        raise


def greet(end: Connection, services: Collection[str], timeout: float) -> str:
    """Greets a client that has authenticated; returns the one of ``services`` that it requests.

    Raises:
        TransportError: the client is gone, or requests another service; the answer lists them.
    """
    greeting = _Greeting(end, timeout)
    wanted = greeting.hear()
    if wanted not in services:
        greeting.say(", ".join(services))
        raise TransportError(f"is {wanted!r}, none of {', '.join(map(repr, services))}")
    greeting.say(wanted)
    greeting.finish()
    return wanted


class _Greeting:
    """The exchange of the service's name, and of whether the ends see loopback addresses."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._both = False

    def say(self, service: str) -> None:
        mine = {"service": service, "loopback": self._connection.is_loopback}
        greeting = Outgoing(messages.HELLO, json.dumps(mine).encode())
        self._connection.send(greeting, self._timeout)

    def hear(self) -> str:
        theirs = _hello(self._connection.receive(self._timeout, self._timeout, 0))
        self._both = self._connection.is_loopback and theirs.get("loopback") is True
        return str(theirs.get("service"))[:_LONGEST_NAME]

    def finish(self) -> None:
        if self._both:
            self._connection.decrypt_no_more()


def _hello(message: Message) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(message.head)
        if message.kind == messages.HELLO and isinstance(found, dict):
            return found
    raise TransportError("does not say which service it is")


class _TransportErrors:
    """Converts OSError to TransportError. ``contextlib`` would be slow for every message."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise TransportError(_reason(error)) from error


_AS_TRANSPORT_ERRORS = _TransportErrors()


def _reason(error: OSError) -> str:
    if isinstance(error, (TimeoutError, BlockingIOError)):
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
