"""The wire format of requests to cache servers.

A ``GET`` names a dataset and some of its samples, each with the size and modification time of its
file as the client sees it. The answer, ``ITEMS``, has a status for each sample, and the bytes of
the hits. A ``GIVE`` carries the bytes of one sample for its owner to cache. A request that fails is
answered with a refusal that says why (system/transport/messages.py).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from fusionloader.cache.range_reading import FileStamp
from fusionloader.system.transport.messages import FIRST_OF_SERVICE

GET = FIRST_OF_SERVICE
ITEMS = FIRST_OF_SERVICE + 1
GIVE = FIRST_OF_SERVICE + 2

FINGERPRINT_BYTES = 32
MOST_ITEMS = 4096
"""Most samples in a request."""
MOST_BYTES = 1 << 26
"""Most bytes of a sample; larger ones are not shared."""

_ITEM = struct.Struct("<QQq")


class WantedFile(NamedTuple):
    """A sample's number, and the stamp of its file."""

    item: int
    stamp: FileStamp


class Status(enum.IntEnum):
    """Status of a sample: sent along; absent, with room for it; absent, without room."""

    HIT = 0
    ABSENT = 1
    UNWANTED = 2


class MalformedRequest(ValueError):
    """A request or an answer that cannot be parsed."""


class FileRequest(NamedTuple):
    """A dataset and some of its samples."""

    fingerprint: bytes
    wanted: list[WantedFile]


def encode(fingerprint: bytes, wanted: Sequence[WantedFile]) -> bytes:
    """Returns a request as bytes.

    Raises:
        ValueError: the fingerprint does not have 32 bytes.
    """
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(fingerprint)}")
    return fingerprint + b"".join(_ITEM.pack(item, *stamp) for item, stamp in wanted)


def decode(head: bytes) -> FileRequest:
    """Parses the request in a message's head.

    Raises:
        MalformedRequest: it is malformed.
    """
    items = len(head) - FINGERPRINT_BYTES
    if items <= 0 or items % _ITEM.size or items > MOST_ITEMS * _ITEM.size:
        raise MalformedRequest(f"a request for samples has not {len(head)} bytes")
    found = _ITEM.iter_unpack(head[FINGERPRINT_BYTES:])
    wanted = [WantedFile(item, FileStamp(nbytes, mtime_ns)) for item, nbytes, mtime_ns in found]
    return FileRequest(head[:FINGERPRINT_BYTES], wanted)


def decode_statuses(head: bytes, wanted: Sequence[WantedFile], body: int) -> list[Status]:
    """Parses the statuses in an answer with a body of ``body`` bytes.

    Raises:
        MalformedRequest: the answer does not match the request.
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
