"""Messages between machines: a kind, a short head, and a body of any size.

Nothing in them is pickled. Each service defines its kinds and the contents of its heads.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from fusionloader.system.transport.errors import TransportError

_HEADER = struct.Struct("<4sIIQ")
_MAGIC = b"FuL1"

HEADER_BYTES = _HEADER.size
MOST_HEAD = 1 << 20
"""Most bytes of a head."""
MOST_BODY = 1 << 28
"""Most bytes of a body."""

HELLO = 0
REFUSED = 1
"""The peer refuses the request; the head is a text that says why."""
FIRST_OF_SERVICE = 16
"""First of the kinds that each service defines."""

Part = bytes | bytearray | memoryview


class Message(NamedTuple):
    """A received message. Its body is valid until the next one is received."""

    kind: int
    head: bytes = b""
    body: memoryview = memoryview(b"")


class Beginning(NamedTuple):
    """A message whose body, of ``body_bytes``, was not received yet."""

    kind: int
    head: bytes
    body_bytes: int


class Outgoing(NamedTuple):
    """A message to send. Its body is sent without a copy; ``holds`` keeps that memory alive."""

    kind: int
    head: bytes = b""
    body: Sequence[Part] = ()
    holds: object = None


def refusal(why: str) -> Outgoing:
    return Outgoing(REFUSED, why.encode(errors="replace"))  # it may quote a peer's invalid text


class Lengths(NamedTuple):
    """A header: kind of the message, bytes of its head and of its body."""

    kind: int
    head: int
    body: int


def pack(message: Outgoing) -> bytes:
    """Returns the header and the head."""
    body = sum([memoryview(part).nbytes for part in message.body])
    return _HEADER.pack(_MAGIC, message.kind, len(message.head), body) + message.head


def unpack(header: Part, most_body: int = MOST_BODY) -> Lengths:
    """Parses the header of a message.

    Raises:
        TransportError: it is no header, or the message is too long.
    """
    magic, kind, head, body = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise TransportError("sends something else than messages of fusionloader")
    if head > MOST_HEAD or body > most_body:
        raise TransportError(f"sends a message of {head} + {body} bytes, which is too long")
    return Lengths(kind, head, body)
