"""What is asked of a cache server, as bytes.

A ``GET`` names a dataset and some of its samples, each with the size and the time of modification
that its file has where it is asked from. The answer, ``ITEMS``, has a status for each, and the
bytes of those that are there. A ``GIVE`` has the bytes of one sample for its owner to keep. What
cannot be done is answered with a refusal that says why (system/transport/messages.py).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from fusionloader.system.transport.messages import FIRST_OF_SERVICE

GET = FIRST_OF_SERVICE
ITEMS = FIRST_OF_SERVICE + 1
GIVE = FIRST_OF_SERVICE + 2

FINGERPRINT_BYTES = 32
MOST_ITEMS = 4096
"""Samples of one request."""
MOST_BYTES = 1 << 26
"""Bytes of a sample that is asked for or given; larger ones are not shared."""

_ITEM = struct.Struct("<QQq")


class Stamp(NamedTuple):
    """What tells a file from another one of its name: its size and time of modification."""

    nbytes: int
    mtime_ns: int


class WantedFile(NamedTuple):
    """A sample, and the stamp that its file has."""

    item: int
    stamp: Stamp


class Status(enum.IntEnum):
    """What a server says of a sample: here it is; not here, and there is room for it; neither."""

    HIT = 0
    ABSENT = 1
    UNWANTED = 2


class MalformedRequest(ValueError):
    """A request that cannot be understood."""


class FileRequest(NamedTuple):
    """A dataset and some of its samples."""

    fingerprint: bytes
    wanted: list[WantedFile]


def encode(fingerprint: bytes, wanted: Sequence[WantedFile]) -> bytes:
    """Returns a request as bytes.

    Raises:
        ValueError: the fingerprint has not 32 bytes.
    """
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(fingerprint)}")
    return fingerprint + b"".join(_ITEM.pack(item, *stamp) for item, stamp in wanted)


def decode(head: bytes) -> FileRequest:
    """Returns the request in a message's head.

    Raises:
        MalformedRequest: there is none.
    """
    items = len(head) - FINGERPRINT_BYTES
    if items <= 0 or items % _ITEM.size or items > MOST_ITEMS * _ITEM.size:
        raise MalformedRequest(f"a request for samples has not {len(head)} bytes")
    found = _ITEM.iter_unpack(head[FINGERPRINT_BYTES:])
    wanted = [WantedFile(item, Stamp(nbytes, mtime_ns)) for item, nbytes, mtime_ns in found]
    return FileRequest(head[:FINGERPRINT_BYTES], wanted)


def decode_statuses(head: bytes, wanted: Sequence[WantedFile], body: int) -> list[Status]:
    """Returns the statuses in an answer with a body of ``body`` bytes.

    Raises:
        MalformedRequest: it is no answer to what was asked.
    """
    try:
        statuses = [Status(value) for value in head]
        pairs = zip(wanted, statuses, strict=True)
        expected = sum(each.stamp.nbytes for each, status in pairs if status is Status.HIT)
    except ValueError:
        raise MalformedRequest("sends an answer with other samples than were asked for") from None
    if expected != body:
        raise MalformedRequest(f"sends {body} bytes for samples of {expected}")
    return statuses
