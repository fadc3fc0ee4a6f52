"""Finds the file, and the offset in it, that an address of this process is mapped from."""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import NamedTuple

_DELETED = " (deleted)"


class MappedPlace(NamedTuple):
    """A place in a mapped file.

    Attributes:
        path: path of the file.
        offset: offset in the file, in bytes.
        available: bytes from there to the end of the mapping.
    """

    path: str
    offset: int
    available: int


class MappedFiles:
    """The files that are mapped at construction, read from ``/proc/self/maps``."""

    def __init__(self) -> None:
        """Reads the mappings.

        Raises:
            OSError: the system is not Linux.
        """
        if sys.platform != "linux":
            raise OSError("mapped files are looked up in /proc/self/maps, which Linux alone has")
        self._starts: list[int] = []
        self._mappings: list[tuple[int, int, str]] = []
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                columns = line.rstrip("\n").split(maxsplit=5)
                if len(columns) < 6 or not columns[5].startswith("/"):
                    continue
                start, end = (int(part, 16) for part in columns[0].split("-"))
                self._starts.append(start)
                self._mappings.append((end, int(columns[2], 16), _unescaped(columns[5])))

    def find_place(self, address: int) -> MappedPlace | None:
        """Returns the mapped place of an address; ``None`` for memory without a file.

        Raises:
            FileNotFoundError: the file was deleted or replaced after it was mapped.
        """
        number = bisect_right(self._starts, address) - 1
        if number < 0:
            return None
        end, offset, path = self._mappings[number]
        if address >= end:
            return None
        if path.endswith(_DELETED):
            name = path.removesuffix(_DELETED)
            raise FileNotFoundError(
                f"{name!r} was deleted or replaced after it had been loaded: load it again"
            )
        return MappedPlace(path, offset + address - self._starts[number], end - address)


def _unescaped(path: str) -> str:
    return path.replace("\\012", "\n")  # the only character that the kernel escapes
