"""What a worker keeps of the files that user code opens: pixels, bytes, entry indexes.

A file is told by its device, inode, size and time of change. Its place in a store follows from
these by hashing, and the places behind it are tried where that one is taken.
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

_PROBES = 8
_MOST_HASH = (1 << 63) - 1
_PIXELS = (("decoded", cache_counts.DECODED), ("disk_decoded", cache_counts.DISK_DECODED))
_BYTES = (("encoded", cache_counts.ENCODED), ("disk_encoded", cache_counts.DISK_ENCODED))

NO_STORES = StoreHandles({}, {})


class Store:
    """A store in which files have no numbers."""

    def __init__(self, view: _native.FileStoreView) -> None:
        self._view, self._places = view, view.items

    def find(self, file: KnownFile) -> KeptFile | None:
        """Returns what is kept of a file."""
        for place in self._near(file):
            if self._view.is_of(place, file.nbytes, file.stamp):
                return self._view.find(place, file.nbytes, file.stamp)
            if self._view.lacks(place, 0):
                break
        return None

    def has_room(self, file: KnownFile, nbytes: int) -> bool:
        """Whether a file is not there, and could be."""
        return self._free(file, nbytes) is not None

    def put(self, file: KnownFile, size: tuple[int, int], data: Any) -> bool:
        """Keeps something of a file; returns whether it is kept."""
        place = self._free(file, memoryview(data).nbytes)
        if place is None:
            return False
        return self._view.put(place, file.nbytes, file.stamp, *size, data)

    def _free(self, file: KnownFile, nbytes: int) -> int | None:
        for place in self._near(file):
            if self._view.lacks(place, nbytes):
                return place
            if self._view.is_of(place, file.nbytes, file.stamp) or self._view.lacks(place, 0):
                break  # there already, or without room
        return None

    def _near(self, file: KnownFile) -> list[int]:
        return [(file.stamp + probe) % self._places for probe in range(_PROBES)]


class OpenStores:
    """The stores of a loader in this process."""

    def __init__(self, handles: StoreHandles = NO_STORES) -> None:
        opened: OpenHandles = handles.open()
        stores = {name: Store(view) for name, view in opened.views.items()}
        self.index = stores.get("index")
        self.pixels = [(stores[name], count) for name, count in _PIXELS if name in stores]
        self.encoded = [(stores[name], count) for name, count in _BYTES if name in stores]
        self.tiers = opened.native
        self._any = bool(stores)

    def file_of(self, opened: Any) -> KnownFile | None:
        """Returns what an open file is known as; ``None`` for what is not a file of its own."""
        if not self._any:
            return None
        # Others may give the descriptor of what they are a part of, as of a shard.
        raw = opened.raw if type(opened) is io.BufferedReader else opened
        if type(raw) is not io.FileIO or raw.closed:
            return None
        info = os.fstat(raw.fileno())
        return KnownFile(self, info) if stat.S_ISREG(info.st_mode) else None


class KnownFile:
    """A file that was opened, and what is kept of it.

    The pixels lie in the store's memory: they are there as long as this is.
    """

    __slots__ = ("_found", "_read", "_stores", "nbytes", "stamp")

    def __init__(self, stores: OpenStores, info: os.stat_result) -> None:
        self._stores = stores
        self._found = False  # its bytes were
        self._read: bytes | None = None  # that may be kept
        self.nbytes = info.st_size
        known = info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
        # Of integers alone: such a hash is the same in every process.
        self.stamp = hash(known) & _MOST_HASH

    def if_whole(self, encoded: bytes) -> KnownFile | None:
        """Returns this, unless something else was read than the file that was asked about."""
        return self if len(encoded) == self.nbytes else None

    def pixels(self) -> Pixels | None:
        """Returns what is kept of it, height x width x 3, not to be written to."""
        for store, count in self._stores.pixels:
            found = store.find(self)
            if found is not None:
                counts().cache[count] += 1
                # What comes from a disk is gone with what was found.
                data = found.view if count == cache_counts.DECODED else found.data
                return np.frombuffer(data, np.uint8).reshape(found.height, found.width, 3)
        return None

    def encoded(self) -> bytes | None:
        """Returns the file's bytes, if they are kept."""
        for store, count in self._stores.encoded:
            found = store.find(self)
            if found is not None:
                counts().cache[count] += 1
                self._found = True
                return found.data
        return None

    def was_read(self, encoded: bytes, seconds: float) -> None:
        """Notes that the file was read from storage, and that its bytes may be kept."""
        stores = self._stores
        if stores.pixels or stores.encoded:
            counts().cache[cache_counts.MISSED] += 1
            stores.tiers.count_read(seconds, len(encoded))
            self._read = encoded if len(encoded) == self.nbytes else None

    def keep_bytes(self) -> None:
        """Keeps what was read, where there is room."""
        encoded, self._read = self._read, None
        if encoded is None:
            return
        if any(store.put(self, (0, 0), encoded) for store, _ in self._stores.encoded):
            counts().cache[cache_counts.FILLED] += 1

    def wants_pixels(self, size: tuple[int, int]) -> bool:
        """Whether pixels of an image of that size would be kept, or are to be measured."""
        stores, nbytes = self._stores, size[0] * size[1] * 3
        if stores.pixels and stores.encoded:
            if self.measuring:
                return not self._found and stores.tiers.tries_pixels(self.stamp)
            if not stores.tiers.wants_pixels(self.stamp) and (
                self._found or _has_room(stores.encoded, self, self.nbytes)
            ):
                return False
        return _has_room(stores.pixels, self, nbytes)

    def keep_pixels(self, pixels: Pixels) -> None:
        """Keeps pixels, height x width x 3, or the file's bytes, whatever is its tier."""
        height, width, _ = pixels.shape
        if self.measuring:
            self._stores.tiers.count_image(pixels.nbytes)
        elif self.wants_pixels((width, height)):
            data = pixels.reshape(-1).data
            if any(store.put(self, (width, height), data) for store, _ in self._stores.pixels):
                counts().cache[cache_counts.FILLED] += 1
                return
        self.keep_bytes()

    def took_all(self, seconds: float, nbytes: int) -> None:
        """Notes what it took to decode an image of which no window can be decoded."""
        tiers = self._stores.tiers
        tiers.count_window(seconds)
        tiers.count_pixels(0.0)
        tiers.count_image(nbytes)

    @property
    def measuring(self) -> bool:
        """Whether it is not decided yet in which of two tiers files are kept."""
        return bool(self._stores.pixels and self._stores.encoded) and self._stores.tiers.measuring

    @contextmanager
    def made_of_bytes(self) -> Iterator[None]:
        """Measures the block, which makes a sample of encoded bytes."""
        began = time.perf_counter()
        yield
        self._stores.tiers.count_window(time.perf_counter() - began)

    @contextmanager
    def made_of_pixels(self) -> Iterator[None]:
        """Measures the block, which makes a sample of pixels that are there."""
        began = time.perf_counter()
        yield
        self._stores.tiers.count_pixels(time.perf_counter() - began)

    def index(self, encoded: bytes, runner: Executor) -> bytes:
        """Returns the entry index, recorded by an executor if there is none; may be empty."""
        store = self._stores.index
        if store is None:
            return b""
        found = store.find(self)
        if found is not None:
            return found.data
        if not store.has_room(self, 0):
            return b""
        index = runner.record(encoded)
        store.put(self, (0, 0), index)
        return index


def _has_room(stores: list[tuple[Store, int]], file: KnownFile, nbytes: int) -> bool:
    return any(store.has_room(file, nbytes) for store, _ in stores)


_current = OpenStores()


def use(stores: OpenStores) -> None:
    """Keeps what this process opens from now on in ``stores``."""
    global _current
    _current = stores


def file_of(opened: Any) -> KnownFile | None:
    """Returns an open file as the stores in use know it, or ``None``."""
    return _current.file_of(opened)
