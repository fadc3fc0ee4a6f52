"""Files that a worker gets from elsewhere, as its loop takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, runtime_checkable

from fusionloader.cache.range_reading import FileRange

RangeOf = Callable[[int], FileRange]
"""Where a sample is, by its number in the table. A file of its own has ``nbytes`` 0."""


class BroughtFile(NamedTuple):
    """The encoded bytes of a sample.

    Attributes:
        item: the sample's number in the table.
        nbytes: size of the file, or of the range.
        mtime_ns: its time of modification; of a URL's range it is not looked at.
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


@runtime_checkable
class RangeFetcher(FileFetcher, Protocol):
    """Asks for what workers cannot read themselves: ranges of URLs."""

    def read(self, item: int) -> bytes | memoryview:
        """Returns a sample's bytes.

        Called for what ``bring`` left out, and for samples in place of others. What it raises is
        the sample's error, and names the URL, the status and what to do.
        """


class RemoteFiles(Protocol):
    """Where a worker gets files from; pickled into its process."""

    def open(self, identity_fd: int, range_of: RangeOf) -> FileFetcher:
        """Returns what asks for them, with the identity in the memory of a descriptor.

        ``identity_fd`` is -1 where the loader has no cache servers.
        """
