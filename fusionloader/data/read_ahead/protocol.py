"""What workers and the training process say to the process that reads, and what it answers.

All over Unix sockets that preserve message boundaries (system/fd_messages.py). The training
process announces samples in the order in which workers will want them. A worker asks for samples,
and is told where they are in memory that the reading process shares with it alone.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from fusionloader.system.fd_messages import FdMessage

ANNOUNCE = "announce"
BEGIN = "begin"
GO = "go"
FORGET = "forget"
MOST_ITEMS = 4096
"""Samples of one message."""
MOST_BYTES = 1 << 17
"""Of one message: 4096 samples, and what is said of them."""

_ITEM = struct.Struct("<q")
_FOUND = struct.Struct("<qqq")


@dataclass(frozen=True, slots=True)
class Found:
    """Where a sample's bytes are in the memory of a connection."""

    item: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """What a worker is told.

    Attributes:
        found: where samples are; none of those that are in ``errors``.
        errors: of samples that cannot be read.
        memory: bytes of new memory, whose descriptor comes along; 0 where it is the same.
    """

    found: tuple[Found, ...]
    errors: dict[int, Exception]
    memory: int = 0

    def message(self, fds: tuple[int, ...]) -> FdMessage:
        """Returns it as it is sent."""
        places = b"".join(_FOUND.pack(each.item, each.offset, each.nbytes) for each in self.found)
        errors = pickle.dumps(self.errors) if self.errors else b""
        return FdMessage({"memory": self.memory, "found": len(self.found)}, places + errors, fds)

    @classmethod
    def from_message(cls, message: FdMessage) -> ReadAnswer:
        """Undoes ``message``."""
        split = message.fields["found"] * _FOUND.size
        found = tuple(Found(*each) for each in _FOUND.iter_unpack(message.payload[:split]))
        rest = message.payload[split:]
        return cls(found, pickle.loads(rest) if rest else {}, message.fields["memory"])


def items_message(kind: str, items: Iterable[int]) -> FdMessage:
    """Returns a message about samples."""
    return FdMessage({"kind": kind}, b"".join(map(_ITEM.pack, items)))


def parse_items(message: FdMessage) -> list[int]:
    """Returns the samples that a message is about."""
    return [item for (item,) in _ITEM.iter_unpack(message.payload)]
