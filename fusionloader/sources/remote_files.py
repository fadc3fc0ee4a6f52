"""Files that a worker gets from elsewhere, as its loop takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

PathOf = Callable[[int], "str | bytes"]


class BroughtFile(NamedTuple):
    """The encoded bytes of a sample's file.

    Attributes:
        item: the sample's number in the table.
        nbytes: size of the file.
        mtime_ns: its time of modification.
        data: its bytes, valid until the next ones are brought.
        is_hit: whether they come from another server's cache, not from storage.
        seconds: that it took.
    """

    item: int
    nbytes: int
    mtime_ns: int
    data: bytes | memoryview
    is_hit: bool
    seconds: float


class FileFetcher(Protocol):
    """Asks other machines for files."""

    def bring(self, items: Iterable[int]) -> list[BroughtFile]:
        """Returns some of the files; those that are missing are read by the worker."""


class RemoteFiles(Protocol):
    """Where a worker gets files from; pickled into its process."""

    def open(self, identity_fd: int, path_of: PathOf) -> FileFetcher:
        """Returns what asks for them, with the identity in the memory of a descriptor."""
