"""A worker's cache of the files that user code opens: pixels, encoded bytes, entry indexes.

A file is identified by its device, inode, size and modification time. A hash of these is its place
in a store. If that place is taken, the places behind it are probed.
"""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from fusionloader import _native
from fusionloader._native import Executor, KeptFile
from fusionloader.cache.tiers.store_handles import OpenHandles, StoreHandles
from fusionloader.data.deferred.counts import counts
from fusionloader.system.shm import cache_counts

Pixels = npt.NDArray[np.uint8]

_PROBES = 8  # places of a store that are tried for a file
_MOST_HASH = (1 << 63) - 1
_SECOND_NS = 1_000_000_000
_TICK_NS = 20_000_000  # more than the tick of any kernel that stamps files with its tick
_PIXELS = (("decoded", cache_counts.DECODED), ("disk_decoded", cache_counts.DISK_DECODED))
_BYTES = (("encoded", cache_counts.ENCODED), ("disk_encoded", cache_counts.DISK_ENCODED))

NO_STORES = StoreHandles({}, {})


class Store:
    """A store of a dataset whose files have no item numbers."""

    def __init__(self, view: _native.FileStoreView) -> None:
        self._view, self._places = view, view.items

    def find(self, file: KnownFile) -> KeptFile | None:
        """Returns the entry of a file; ``None`` if there is none."""
        for place in self._near(file):
            if self._view.is_of(place, file.nbytes, file.stamp):
                return self._view.find(place, file.nbytes, file.stamp)
            if self._view.lacks(place, 0):
                break
        return None

    def can_put(self, file: KnownFile, nbytes: int) -> bool:
        """Whether a file is not in the store, and ``nbytes`` of it would fit."""
        return self._free(file, nbytes) is not None

    def put(self, file: KnownFile, size: tuple[int, int], data: Any) -> bool:
        """Stores data of a file; returns ``False`` if there is no place for it."""
        place = self._free(file, memoryview(data).nbytes)
        if place is None:
            return False
        return self._view.put(place, file.nbytes, file.stamp, *size, data)

    def _free(self, file: KnownFile, nbytes: int) -> int | None:
        for place in self._near(file):
            if self._view.lacks(place, nbytes):
                return place
            if self._view.is_of(place, file.nbytes, file.stamp) or self._view.lacks(place, 0):
                break  # the file is there already, or the store is full
        return None

    def _near(self, file: KnownFile) -> list[int]:
        return [(file.stamp + probe) % self._places for probe in range(_PROBES)]


class OpenStores:
    """The stores of one loader, opened in this process."""

    def __init__(self, handles: StoreHandles = NO_STORES) -> None:
        opened: OpenHandles = handles.open()
        stores = {name: Store(view) for name, view in opened.views.items()}
        self.index = stores.get("index")
        self.pixels = [(stores[name], count) for name, count in _PIXELS if name in stores]
        self.encoded = [(stores[name], count) for name, count in _BYTES if name in stores]
        self.tiers = opened.native
        self.any = bool(stores)

    def find_file(self, opened: Any) -> KnownFile | None:
        """Returns the identity of an open file; ``None`` for other file-like objects."""
        if not self.any:
            return None
        # Another class may return the descriptor of a larger file, such as a shard.
        raw = opened.raw if type(opened) is io.BufferedReader else opened
        if type(raw) is not io.FileIO or raw.closed:
            return None
        info = os.fstat(raw.fileno())
        is_known = stat.S_ISREG(info.st_mode) and not _may_change_unnoticed(info)
        return KnownFile(self, info) if is_known else None


def _may_change_unnoticed(info: os.stat_result) -> bool:
    """Whether a file is so new that the next one at its path may have its inode, size and time."""
    tick = _SECOND_NS * 2 if info.st_mtime_ns % _SECOND_NS == 0 else _TICK_NS
    return abs(time.time_ns() - info.st_mtime_ns) < tick


class KnownFile:
    """An opened file, and access to its cached data.

    Cached pixels lie in the store's memory, and are valid as long as this object lives.
    """

    __slots__ = ("_found", "_read", "_stores", "nbytes", "stamp")

    def __init__(self, stores: OpenStores, info: os.stat_result) -> None:
        self._stores = stores
        self._found = False  # whether the encoded bytes were cached
        self._read: bytes | None = None  # encoded bytes that may be cached
        self.nbytes = info.st_size
        known = info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
        # The hash of a tuple of integers is the same in every process.
        self.stamp = hash(known) & _MOST_HASH

    def if_whole(self, encoded: bytes) -> KnownFile | None:
        """Returns ``self``, or ``None`` if ``encoded`` is not as long as the file."""
        return self if len(encoded) == self.nbytes else None

    def pixels(self) -> Pixels | None:
        """Returns the cached pixels, height x width x 3, read-only; ``None`` if there are none."""
        for store, count in self._stores.pixels:
            found = store.find(self)
            if found is not None:
                counts().cache[count] += 1
                # Bytes from a disk belong to ``found``, so they are copied.
                data = found.view if count == cache_counts.DECODED else found.data
                return np.frombuffer(data, np.uint8).reshape(found.height, found.width, 3)
        return None

    def encoded(self) -> bytes | None:
        """Returns the cached bytes of the file; ``None`` if there are none."""
        for store, count in self._stores.encoded:
            found = store.find(self)
            if found is not None:
                counts().cache[count] += 1
                self._found = True
                return found.data
        return None

    def was_read(self, encoded: bytes, seconds: float) -> None:
        """Counts a read from storage, and remembers the bytes for ``keep_bytes``."""
        stores = self._stores
        if stores.pixels or stores.encoded:
            counts().cache[cache_counts.MISSED] += 1
            stores.tiers.count_read(seconds, len(encoded))
            self._read = encoded if len(encoded) == self.nbytes else None

    def keep_bytes(self) -> None:
        """Caches the bytes that were read, if there is a place for them."""
        encoded, self._read = self._read, None
        if encoded is None:
            return
        if any(store.put(self, (0, 0), encoded) for store, _ in self._stores.encoded):
            counts().cache[cache_counts.FILLED] += 1

    def wants_pixels(self, size: tuple[int, int]) -> bool:
        """Whether pixels of this size (width, height) are to be cached, or measured."""
        stores, nbytes = self._stores, size[0] * size[1] * 3
        if stores.pixels and stores.encoded:
            if self.measuring:
                return not self._found and stores.tiers.tries_pixels(self.stamp)
            if not stores.tiers.wants_pixels(self.stamp) and (
                self._found or _can_put(stores.encoded, self, self.nbytes)
            ):
                return False
        return _can_put(stores.pixels, self, nbytes)

    def keep_pixels(self, pixels: Pixels) -> None:
        """Caches pixels, height x width x 3, or the file's bytes, according to the tier."""
        height, width, _ = pixels.shape
        if self.measuring:
            self._stores.tiers.count_image(pixels.nbytes)
        elif self.wants_pixels((width, height)):
            data = pixels.reshape(-1).data
            if any(store.put(self, (width, height), data) for store, _ in self._stores.pixels):
                counts().cache[cache_counts.FILLED] += 1
                return
        self.keep_bytes()

    def count_whole(self, seconds: float, nbytes: int) -> None:
        """Counts the decoding of an image whose format has no region decoding."""
        tiers = self._stores.tiers
        tiers.count_window(seconds)
        tiers.count_pixels(0.0)
        tiers.count_image(nbytes)

    @property
    def measuring(self) -> bool:
        """Whether rates are still being measured to choose one of two tiers for files."""
        return bool(self._stores.pixels and self._stores.encoded) and self._stores.tiers.measuring

    @contextmanager
    def made_of_bytes(self) -> Iterator[None]:
        """Measures the time of the block, which makes a sample from encoded bytes."""
        began = time.perf_counter()
        yield
        self._stores.tiers.count_window(time.perf_counter() - began)

    @contextmanager
    def made_of_pixels(self) -> Iterator[None]:
        """Measures the time of the block, which makes a sample from decoded pixels."""
        began = time.perf_counter()
        yield
        self._stores.tiers.count_pixels(time.perf_counter() - began)

    def index(self, encoded: bytes, runner: Executor) -> bytes:
        """Returns the JPEG entry index, recorded by ``runner`` if not cached; may be empty."""
        store = self._stores.index
        if store is None:
            return b""
        found = store.find(self)
        if found is not None:
            return found.data
        if not store.can_put(self, 0):
            return b""
        index = runner.record(encoded)
        store.put(self, (0, 0), index)
        return index


def _can_put(stores: list[tuple[Store, int]], file: KnownFile, nbytes: int) -> bool:
    return any(store.can_put(file, nbytes) for store, _ in stores)


_current = OpenStores()


def use(stores: OpenStores) -> None:
    """Makes ``stores`` the cache of the files that this process opens from now on."""
    global _current
    _current = stores


def is_in_use() -> bool:
    """Whether files of this process are cached."""
    return _current.any


def find_file(opened: Any) -> KnownFile | None:
    """Like ``OpenStores.find_file``, in the stores in use."""
    return _current.find_file(opened)
