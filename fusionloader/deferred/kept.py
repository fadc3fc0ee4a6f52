"""What a worker keeps of the files that user code opens: pixels, and where the decoder stood.

A file is told by its device, inode, size and time of change. Its place in a store follows from
these by hashing, and the places behind it are tried where that one is taken.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fusionloader._native import Executor, FileStoreView, KeptFile
from fusionloader.deferred.counts import counts
from fusionloader.shm.descriptor import Descriptor

Pixels = npt.NDArray[np.uint8]

_PROBES = 8
_MOST_HASH = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StoreHandle:
    """A store for another process: its descriptor, bytes, and number of places."""

    fd: Descriptor
    nbytes: int
    places: int


@dataclass(frozen=True, slots=True)
class ImageStores:
    """What workers of a loader keep: decoded images, entry indexes; ``None`` where they do not."""

    pixels: StoreHandle | None = None
    indexes: StoreHandle | None = None

    def descriptors(self) -> dict[str, int]:
        """Returns the descriptors by name, for a process that gets them otherwise than pickled."""
        handles = {"pixels_fd": self.pixels, "indexes_fd": self.indexes}
        return {name: handle.fd.fd for name, handle in handles.items() if handle is not None}

    def at(self, fds: Mapping[str, int]) -> ImageStores:
        """Returns the stores behind other descriptors, which may be missing."""
        return ImageStores(
            _moved(self.pixels, fds.get("pixels_fd", -1)),
            _moved(self.indexes, fds.get("indexes_fd", -1)),
        )

    def open(self) -> OpenStores:
        """Returns them mapped into this process."""
        opened = (_Store(handle) if handle else None for handle in (self.pixels, self.indexes))
        return OpenStores(*opened)


def _moved(handle: StoreHandle | None, fd: int) -> StoreHandle | None:
    return None if handle is None else replace(handle, fd=Descriptor(fd))


class _Store:
    def __init__(self, handle: StoreHandle) -> None:
        self._view = FileStoreView(handle.fd.fd, handle.nbytes)
        self._places = handle.places

    def find(self, file: KnownFile) -> KeptFile | None:
        for place in self._near(file):
            found = self._view.find(place, file.nbytes, file.stamp)
            if found is not None or self._view.lacks(place, 0):
                return found
        return None

    def has_room(self, file: KnownFile, nbytes: int) -> bool:
        """Whether a file is not there, and could be."""
        return self._free(file, nbytes) is not None

    def put(self, file: KnownFile, size: tuple[int, int], data: Any) -> None:
        place = self._free(file, memoryview(data).nbytes)
        if place is not None:
            self._view.put(place, file.nbytes, file.stamp, *size, data)

    def _free(self, file: KnownFile, nbytes: int) -> int | None:
        for place in self._near(file):
            if self._view.find(place, file.nbytes, file.stamp) is not None:
                return None
            if self._view.lacks(place, nbytes):
                return place
        return None

    def _near(self, file: KnownFile) -> list[int]:
        return [(file.stamp + probe) % self._places for probe in range(_PROBES)]


@dataclass(frozen=True, slots=True)
class OpenStores:
    """The stores of ``ImageStores`` in this process."""

    pixels: _Store | None = None
    indexes: _Store | None = None

    def file_of(self, opened: Any) -> KnownFile | None:
        """Returns what an open file is known as; ``None`` for what is not a file of its own."""
        if self.pixels is None and self.indexes is None:
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

    __slots__ = ("_stores", "nbytes", "stamp")

    def __init__(self, stores: OpenStores, info: os.stat_result) -> None:
        self._stores = stores
        self.nbytes = info.st_size
        known = info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
        self.stamp = hash(known) & _MOST_HASH

    def if_whole(self, encoded: bytes) -> KnownFile | None:
        """Returns this, unless something else was read than the file that was asked about."""
        return self if len(encoded) == self.nbytes else None

    def pixels(self) -> Pixels | None:
        """Returns what is kept of it, height x width x 3, not to be written to."""
        store = self._stores.pixels
        found = None if store is None else store.find(self)
        if found is None:
            return None
        counts().cache_hits += 1
        return np.frombuffer(found.view, np.uint8).reshape(found.height, found.width, 3)

    def wants_pixels(self, size: tuple[int, int]) -> bool:
        """Whether pixels of an image of that size would be kept."""
        store = self._stores.pixels
        return store is not None and store.has_room(self, size[0] * size[1] * 3)

    def keep_pixels(self, pixels: Pixels) -> None:
        """Keeps pixels, height x width x 3, where there is room."""
        if self._stores.pixels is not None:
            height, width, _ = pixels.shape
            self._stores.pixels.put(self, (width, height), pixels.reshape(-1).data)

    def index(self, encoded: bytes, runner: Executor) -> bytes:
        """Returns the entry index, recorded by an executor if there is none; may be empty."""
        store = self._stores.indexes
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


_current = OpenStores()


def use(stores: OpenStores) -> None:
    """Keeps what this process opens from now on in ``stores``."""
    global _current
    _current = stores


def file_of(opened: Any) -> KnownFile | None:
    """Returns an open file as the stores in use know it, or ``None``."""
    return _current.file_of(opened)
