"""Messages of workers and the training process to the process that reads URLs, and its answers.

They travel over Unix sockets that preserve message boundaries (system/fd_messages.py). The training
process announces samples in the order in which workers will use them. A worker requests samples,
and the answer has their places in memory that the reading process shares with this worker alone.
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
"""Most samples in one message."""
MOST_BYTES = 1 << 17
"""Most bytes of one message, enough for 4096 samples."""

_ITEM = struct.Struct("<q")
_FOUND = struct.Struct("<qqq")


@dataclass(frozen=True, slots=True)
class Found:
    """The place of a sample's bytes in the memory of a connection."""

    item: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The answer to a worker's request.

    Attributes:
        found: places of the samples that were read.
        errors: errors of the other samples, by item.
        memory: size in bytes of new memory, whose descriptor is attached; 0 if it is unchanged.
    """

    found: tuple[Found, ...]
    errors: dict[int, Exception]
    memory: int = 0

    def message(self, fds: tuple[int, ...]) -> FdMessage:
        places = b"".join(_FOUND.pack(each.item, each.offset, each.nbytes) for each in self.found)
        errors = pickle.dumps(self.errors) if self.errors else b""
        return FdMessage({"memory": self.memory, "found": len(self.found)}, places + errors, fds)

    @classmethod
    def from_message(cls, message: FdMessage) -> ReadAnswer:
        split = message.fields["found"] * _FOUND.size
        found = tuple(Found(*each) for each in _FOUND.iter_unpack(message.payload[:split]))
        rest = message.payload[split:]
        return cls(found, pickle.loads(rest) if rest else {}, message.fields["memory"])


def items_message(kind: str, items: Iterable[int]) -> FdMessage:
    return FdMessage({"kind": kind}, b"".join(map(_ITEM.pack, items)))


def parse_items(message: FdMessage) -> list[int]:
    return [item for (item,) in _ITEM.iter_unpack(message.payload)]
