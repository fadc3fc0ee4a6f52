"""Requests for ranges of files, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Places(Protocol):
    """Where samples are: numbered by place, in the order of (file, offset)."""

    def place(self, item: int) -> int:
        """Returns a sample's place."""

    def item(self, place: int) -> int:
        """Undoes ``place``."""

    def range(self, place: int) -> tuple[int, int, int]:
        """Returns file, first byte and the byte behind the last of the sample at a place."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """One request: a range of a file, and the samples in it.

    Attributes:
        file: number of the file.
        start: first byte.
        stop: the byte behind the last.
        items: samples within, in the order of the file.
    """

    file: int
    start: int
    stop: int
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How requests are made.

    Attributes:
        budget: bytes of samples that are asked for or held, and not taken.
        most_bytes: of one request, unless a single sample is larger.
        most_gap: bytes between two samples that are read and dropped, to save a request.
    """

    budget: int
    most_bytes: int = 8 << 20
    most_gap: int = 64 << 10
