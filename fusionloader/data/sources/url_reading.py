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

DENIED = (401, 403)
ABSENT = (404, 410)
RANGES_NEEDED = "the server ignores ranges: copy the shard to one that answers them, or to a disk"
"""Remedy for ``RangesIgnored``."""


class UrlUnreadable(OSError):
    """A range of a URL cannot be read. The message has the URL, the status and a remedy.

    Attributes:
        status: HTTP status; ``None`` without an answer, or with another protocol.
    """

    status: int | None = None


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

    stop = where.offset + where.nbytes
    try:
        system, path = url_to_fs(where.file, **storage_options)
        found = _read(system, path, where.offset, stop)
    except http_ranges.WrongLength as error:
        why = f"has {error} there: the shard has changed, index it again"
        raise UrlUnreadable(_text(where, name, why)) from error
    except Exception as error:  # each file system has its own exceptions
        raise _unreadable(where, name, error) from error
    if len(found) != where.nbytes:
        why = f"has {len(found)} bytes there: the shard has changed, index it again"
        raise UrlUnreadable(_text(where, name, why))
    return found


def _read(system: Any, path: str, start: int, stop: int) -> bytes:
    if http_ranges.is_http(system):
        from fsspec.asyn import sync

        return bytes(sync(system.loop, http_ranges.read_range, system, path, start, stop))
    return bytes(system.cat_file(path, start=start, end=stop))


def _unreadable(
    where: FileRange, name: Callable[[], str] | None, error: Exception
) -> UrlUnreadable:
    status = getattr(error, "status", None) or getattr(error, "code", None)
    status = status if isinstance(status, int) else None
    if status in DENIED or isinstance(error, PermissionError):
        remedy = "pass credentials by storage_options, as fsspec's file system names them"
    elif status in ABSENT or isinstance(error, FileNotFoundError):
        remedy = "check the URL; if the shard was replaced, index it again"
    elif isinstance(error, http_ranges.RangesIgnored):
        remedy = RANGES_NEEDED
    elif isinstance(error, ImportError):
        remedy = "install the file system that fsspec names"
    else:
        remedy = "see that the server answers, and try again"
    status_text = f"status {status}, " if status is not None else ""
    why = f"cannot be read ({status_text}{type(error).__name__}: {error}): {remedy}"
    made = UrlUnreadable(_text(where, name, why))
    made.status = status
    return made


def _text(where: FileRange, name: Callable[[], str] | None, why: str) -> str:
    sample = "" if name is None else f", of the sample {name()},"
    last = where.offset + where.nbytes - 1
    return f"{where.file!r}, bytes {where.offset} to {last}{sample} {why}"


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
