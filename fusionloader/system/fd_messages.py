"""Messages with file descriptors between processes of one user.

Sockets in the abstract namespace leave no files behind. A descriptor received through one
(``SCM_RIGHTS``) stays valid when its sender dies; ``/proc/PID/fd`` would need a live sender, whose
pid may be reused before the file is opened. Any user may connect to such a name, or bind it first,
so both ends ask the kernel for the peer's user. Native workers import this module.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Any

_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 16
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


Fields = dict[str, Any]
"""A decoded JSON object; values are checked where they are used."""


@dataclass(slots=True)
class FdMessage:
    """A message: JSON fields, a pickled payload, and descriptors.

    Attributes:
        fields: JSON fields, which every version of the package can read.
        payload: pickled data for processes of the same version.
        fds: descriptors; a received message owns them.
    """

    fields: Fields
    payload: bytes = b""
    fds: tuple[int, ...] = ()

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = ()


def package_version() -> str:
    return str(vars(sys.modules["fusionloader"])["__version__"])


def make_socket() -> socket.socket:
    """Returns a socket that preserves message boundaries."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def listen(address: str, backlog: int) -> socket.socket | None:
    """Returns a socket that listens at ``address``; ``None`` if another process listens there."""
    listener = make_socket()
    try:
        listener.bind("\0" + address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    listener.listen(backlog)
    return listener


class OtherUser(PermissionError):
    """A process of another user listens at an address."""


def connect(address: str, timeout: float) -> socket.socket | None:
    """Connects to ``address``; returns ``None`` if no process of this user listens there.

    Calls on the connection wait at most ``timeout`` seconds.
    """
    try:
        return connect_to_own(address, timeout)
    except OSError:
        return None


def connect_to_own(address: str, timeout: float) -> socket.socket:
    """Connects as ``connect`` does.

    Raises:
        OtherUser: a process of another user listens there.
        OSError: no process listens there.
    """
    connection = make_socket()
    try:
        connection.settimeout(timeout)
        connection.connect("\0" + address)
        if not is_same_user(connection):
            pid, uid = _peer(connection)
            raise OtherUser(f"process {pid} of user {uid} has bound the name that it needs")
    except BaseException:
        connection.close()
        raise
    return connection


def is_same_user(connection: socket.socket) -> bool:
    return _peer(connection)[1] == os.geteuid()


def peer_pid(connection: socket.socket) -> int:
    return _peer(connection)[0]


def _peer(connection: socket.socket) -> tuple[int, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def send(connection: socket.socket, message: FdMessage) -> None:
    """Sends a whole message.

    Raises:
        OSError: the other end is closed or does not read, or the message is too large.
    """
    raw = json.dumps(message.fields).encode() + b"\n" + message.payload
    socket.send_fds(connection, [raw], list(message.fds), socket.MSG_NOSIGNAL)


def receive(connection: socket.socket, most_bytes: int = _MOST_BYTES) -> FdMessage | None:
    """Returns the next message; ``None`` if the other end is closed or the message is malformed.

    A message of more than ``most_bytes`` is malformed. A small limit saves time, because the whole
    buffer is allocated before.

    Raises:
        BlockingIOError, TimeoutError: there is no message yet.
    """
    try:
        raw, fds, flags, _ = socket.recv_fds(
            connection, most_bytes, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except (BlockingIOError, TimeoutError):
        raise
    except OSError:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)  # some releases of Python lose the flag
    message = FdMessage({}, b"", tuple(fds))
    head, _, message.payload = raw.partition(b"\n")
    with contextlib.suppress(ValueError, RecursionError):
        fields = json.loads(head)
        if isinstance(fields, dict) and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            message.fields = fields
            return message
    message.close()
    return None
