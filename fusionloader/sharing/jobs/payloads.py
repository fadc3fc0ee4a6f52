"""Messages between jobs and the coordinator; large payloads are sent as shared memory."""

from __future__ import annotations

import os
import socket

from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.shm import objects

_MOST_INLINE = 32 << 10  # bytes, so that a socket's buffer holds several messages
_MOST_BYTES = 64 << 10


def send(
    connection: socket.socket, fields: Fields, payload: bytes = b"", fds: tuple[int, ...] = ()
) -> None:
    """Sends all of a message, or raises.

    Raises:
        BlockingIOError: the socket's buffer is full.
        OSError: the other end is closed.
        SharedMemoryExhausted: there is too little memory for the payload.
    """
    if len(payload) <= _MOST_INLINE:
        fd_messages.send(connection, FdMessage(fields, payload, fds))
        return
    fd = objects.create(len(payload), "payload")
    try:
        os.pwrite(fd, payload, 0)
        fd_messages.send(connection, FdMessage({**fields, "apart": True}, b"", (*fds, fd)))
    finally:
        os.close(fd)


def receive(connection: socket.socket) -> FdMessage | None:
    """Returns the next message, ``None`` when the other end is closed.

    Raises:
        BlockingIOError: no message has arrived.
    """
    message = fd_messages.receive(connection, _MOST_BYTES)
    if message is not None and message.fields.get("apart"):
        *others, fd = message.fds
        message.payload = os.pread(fd, os.fstat(fd).st_size, 0)
        message.fds = tuple(others)
        os.close(fd)
    return message
