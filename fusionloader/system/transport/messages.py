"""A message between machines: a kind, a short head, and a body of any size.

Nothing in it is pickled. What kinds there are, and what a head holds, is the service's to say.
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
"""Bytes of the longest head."""
MOST_BODY = 1 << 28
"""Bytes of the longest body."""

HELLO = 0
REFUSED = 1
"""The peer does not do what it was asked; the head says why, as text."""
FIRST_OF_SERVICE = 16
"""Kinds from here on are the service's own."""

Part = bytes | bytearray | memoryview


class Message(NamedTuple):
    """A message that was received; the body is valid until the next one is."""

    kind: int
    head: bytes = b""
    body: memoryview = memoryview(b"")


class Beginning(NamedTuple):
    """A message whose body of so many bytes is still to be received."""

    kind: int
    head: bytes
    body_bytes: int


class Outgoing(NamedTuple):
    """A message to send.

    The parts of its body are sent from where they lie, and ``holds`` is what that belongs to.
    """

    kind: int
    head: bytes = b""
    body: Sequence[Part] = ()
    holds: object = None


def refusal(why: str) -> Outgoing:
    """Returns a message that says why something is not done."""
    return Outgoing(REFUSED, why.encode(errors="replace"))  # it may quote what a peer has sent


class Lengths(NamedTuple):
    """What a header says: kind of the message, bytes of its head and of its body."""

    kind: int
    head: int
    body: int


def pack(message: Outgoing) -> bytes:
    """Returns the header and the head."""
    body = sum([memoryview(part).nbytes for part in message.body])
    return _HEADER.pack(_MAGIC, message.kind, len(message.head), body) + message.head


def unpack(header: Part, most_body: int = MOST_BODY) -> Lengths:
    """Returns what the first bytes of a message say.

    Raises:
        TransportError: they are not of a message, or of one that is too long.
    """
    magic, kind, head, body = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise TransportError("sends something else than messages of fusionloader")
    if head > MOST_HEAD or body > most_body:
        raise TransportError(f"sends a message of {head} + {body} bytes, which is too long")
    return Lengths(kind, head, body)
