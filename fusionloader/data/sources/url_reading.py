"""Reads ranges of URLs through fsspec, with one request for each range.

Native workers import this module, so it imports neither numpy nor torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fusionloader.cache.range_reading import FileRange
from fusionloader.cache.remote_files import BroughtFile, RangeOf
from fusionloader.data.sources import http_ranges
from fusionloader.data.sources.url_errors import UrlUnreadable, unreadable


def read_url_range(
    where: FileRange, storage_options: dict[str, Any], name: Callable[[], str] | None = None
) -> bytes:
    """Returns the bytes of a range of a URL.

    Args:
        where: the range.
        storage_options: options of fsspec's file system.
        name: returns the sample's name for messages.

    Raises:
        UrlUnreadable: the read failed.
    """
    from fsspec.core import url_to_fs

    start, stop = where.offset, where.offset + where.nbytes
    try:
        system, path = url_to_fs(where.file, **storage_options)
        return _read(system, path, start, stop)
    except Exception as error:  # each file system has its own exceptions
        raise unreadable(where.file, start, stop, error, name=name) from error


def _read(system: Any, path: str, start: int, stop: int) -> bytes:
    if http_ranges.is_http(system):
        from fsspec.asyn import sync

        return bytes(sync(system.loop, http_ranges.read_range, system, path, start, stop))
    found = bytes(system.cat_file(path, start=start, end=stop))
    if len(found) != stop - start:
        raise http_ranges.WrongLength(f"{len(found)} bytes instead of {stop - start}")
    return found


@dataclass(frozen=True, slots=True)
class UrlFiles:
    """A ``RemoteFiles`` that sends one request for each sample, when a worker needs it.

    Attributes:
        storage_options: options of fsspec's file system.
    """

    storage_options: dict[str, Any] = field(default_factory=dict)

    def open(self, identity_fd: int, range_of: RangeOf) -> UrlFetcher:
        return UrlFetcher(self.storage_options, range_of)


class UrlFetcher:
    """Reads the ranges of samples one after the other."""

    def __init__(self, storage_options: dict[str, Any], range_of: RangeOf) -> None:
        self._storage_options = storage_options
        self._range_of = range_of

    def bring(self, items: Iterable[int]) -> list[BroughtFile]:
        """Returns the bytes of samples, without those that cannot be read."""
        brought = []
        for item in items:
            began = time.perf_counter()
            try:
                data = self.read(item)
            except UrlUnreadable:  # read() raises it again when the sample is made
                continue
            seconds = time.perf_counter() - began
            brought.append(BroughtFile(item, len(data), 0, data, False, seconds))
        return brought

    def read(self, item: int) -> bytes:
        """Returns one sample's bytes.

        Raises:
            UrlUnreadable: the read failed.
        """
        return read_url_range(self._range_of(item), self._storage_options)
