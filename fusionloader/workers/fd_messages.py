"""Messages with descriptors between ranks, their workers and the global manager.

A socket in the abstract namespace leaves nothing behind, and a descriptor that came through it
(``SCM_RIGHTS``) stays good when its sender dies; ``/proc/PID/fd`` would need the sender alive, and
may be another process's by the time it is opened. Anybody may connect to such a name, or take it
first, so both ends ask the kernel who is there. Imports little: native workers use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Any

_LARGEST = 1 << 20
_MOST_DESCRIPTORS = 8
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@dataclass(slots=True)
class Message:
    """``fields`` for everyone to read, ``payload`` for those of one version, and descriptors."""

    fields: dict[str, Any]
    payload: bytes = b""
    fds: tuple[int, ...] = ()

    def close(self) -> None:
        """Closes its descriptors."""
        for fd in self.fds:
            os.close(fd)
        self.fds = ()


def package_version() -> str:
    """Returns the version of fusionloader that runs here."""
    return str(vars(sys.modules["fusionloader"])["__version__"])


def make_socket() -> socket.socket:
    """Returns a socket that keeps messages apart."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def connect(address: str, timeout: float) -> socket.socket | None:
    """Returns a connection to the global manager at ``address``, ``None`` if there is none.

    Later calls on it wait at most ``timeout`` seconds.
    """
    connection = make_socket()
    try:
        connection.settimeout(timeout)
        connection.connect("\0" + address)
        if is_ours(connection):
            return connection
    except OSError:
        pass
    connection.close()
    return None


def is_ours(connection: socket.socket) -> bool:
    """Whether a process of this user is at the other end."""
    return _peer(connection)[1] == os.geteuid()


def peer_pid(connection: socket.socket) -> int:
    """Returns the pid of the process that connected."""
    return _peer(connection)[0]


def _peer(connection: socket.socket) -> tuple[int, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def send(connection: socket.socket, message: Message) -> None:
    """Sends a message whole.

    Raises:
        OSError: the other end is gone or does not read, or the message is too large.
    """
    raw = json.dumps(message.fields).encode() + b"\n" + message.payload
    socket.send_fds(connection, [raw], list(message.fds), socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> Message | None:
    """Returns the next message, ``None`` when the other end is gone or talks nonsense.

    Raises:
        BlockingIOError, TimeoutError: there is none yet.
    """
    try:
        raw, fds, flags, _ = socket.recv_fds(
            connection, _LARGEST, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except (BlockingIOError, TimeoutError):
        raise
    except OSError:
        return None
    message = Message({}, b"", tuple(fds))
    head, _, message.payload = raw.partition(b"\n")
    with contextlib.suppress(ValueError):
        fields = json.loads(head)
        if isinstance(fields, dict) and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            message.fields = fields
            return message
    message.close()
    return None
