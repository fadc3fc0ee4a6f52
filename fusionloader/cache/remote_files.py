"""The interface of a worker's loop to files on other machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, runtime_checkable

from fusionloader.cache.range_reading import FileRange

RangeOf = Callable[[int], FileRange]
"""Returns the range of a sample, by its number in the table."""


class BroughtFile(NamedTuple):
    """The encoded bytes of a sample.

    Attributes:
        item: the sample's number in the table.
        nbytes: size of the file or range in bytes.
        mtime_ns: modification time of the file in ns; unused for URLs.
        data: the bytes, valid until the next call of ``bring``.
        is_hit: whether they come from another server's cache, not from storage.
        seconds: time that it took, in seconds.
    """

    item: int
    nbytes: int
    mtime_ns: int
    data: bytes | memoryview
    is_hit: bool
    seconds: float


class FileFetcher(Protocol):
    """Fetches files from other machines."""

    def bring(self, items: Iterable[int]) -> list[BroughtFile]:
        """Returns some of the files. The worker reads the others."""


@runtime_checkable
class RangeFetcher(FileFetcher, Protocol):
    """Fetches what workers cannot read themselves: ranges of URLs."""

    def read(self, item: int) -> bytes | memoryview:
        """Returns a sample's bytes.

        It is called for samples that ``bring`` left out, and for substitutes of bad samples. An
        exception becomes the sample's error, and names the URL, the status and what to do.
        """


class RemoteFiles(Protocol):
    """Makes a worker's fetcher; pickled into its process."""

    def open(self, identity_fd: int, range_of: RangeOf) -> FileFetcher:
        """Returns the fetcher.

        ``identity_fd`` is the descriptor of the ``Identity``, -1 if there are no cache servers.
        """
