"""What a loader keeps of its files from epoch to epoch, and how much shared memory that takes."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from fusionloader.deferred.kept import ImageStores, StoreHandle
from fusionloader.options import LoaderOptions
from fusionloader.shm import objects, saved_store
from fusionloader.shm.dataset_table import DatasetTable
from fusionloader.shm.descriptor import Descriptor
from fusionloader.shm.file_store import FileStore
from fusionloader.shm.objects import SharedMemoryExhausted
from fusionloader.shm.saved_store import SavedStoreMismatch

log = logging.getLogger("fusionloader.loader")

# Of what is free in /dev/shm: left to batches.
_SPARED_SHARE = 1 / 8
# Of an index: enough for ImageNet, and a share of what is free.
_INDEX_BYTES, _INDEX_SHARE = 2 << 30, 1 / 4
# Of images that user code opens: places in a store, and bytes that the smallest are taken to have.
_PLACES_PER_SAMPLE, _LEAST_IMAGE, _LEAST_INDEX = 4, 16 << 10, 1 << 10


class KeptFiles:
    """The stores of a options, made once while its dataset stays the same.

    Attributes:
        pixels: decoded images, ``None`` without a ``DecodedCache`` or without room for one.
        indexes: entry indexes of JPEG files, ``None`` likewise.
    """

    def __init__(self) -> None:
        self.pixels: FileStore | None = None
        self.indexes: FileStore | None = None
        self._table: DatasetTable | None = None
        self._options: tuple[Any, ...] = ()
        self._said_closed = False
        self._path: Path | None = None
        self._saved = 0

    def of(self, options: LoaderOptions, table: DatasetTable, holds_files: bool) -> KeptFiles:
        """Returns this, for the files of ``table``; what was kept of another table is dropped."""
        if self._begins_anew(options, table):
            if options.cache is not None and holds_files:
                self.pixels = _pixel_store(len(table), options.cache.nbytes)
            if options.jpeg_index is not None and holds_files:
                self._begin_index(table, options.jpeg_index)
        return self

    def of_images(self, options: LoaderOptions) -> ImageStores:
        """Returns stores for the images that user code opens in workers."""
        if self._begins_anew(options, None):
            if options.cache is not None:
                budget = options.cache.nbytes
                self.pixels = _pixel_store(_places(options, budget, _LEAST_IMAGE), budget)
            if options.jpeg_index is not None:
                budget = _index_budget()
                places = _places(options, budget, _LEAST_INDEX)
                self.indexes = _store(places, budget, 0, "no entry index is kept")
            if options.jpeg_index not in (None, "auto"):
                log.warning("the entry index of files that user code opens is not saved")
        return ImageStores(_handle(self.pixels), _handle(self.indexes))

    def _begins_anew(self, options: LoaderOptions, table: DatasetTable | None) -> bool:
        """Drops what was kept of another table or by other options; returns whether it did."""
        kept = (options.cache, options.jpeg_index)
        if table is self._table and kept == self._options:
            return False
        self._table, self._options = table, kept
        self.pixels = self.indexes = self._path = None
        self._said_closed = False
        return True

    def epoch_ended(self) -> None:
        """Saves a new index, and says once that ``/dev/shm`` is full."""
        self._save_index()
        store = self.pixels
        if store is not None and store.closed and not self._said_closed:
            self._said_closed = True
            log.warning(
                "/dev/shm is full: the decoded cache stays at %d images and %s of its %s; the "
                "others are decoded in every epoch. Make /dev/shm larger, or the budget smaller",
                store.kept,
                objects.mib(store.used),
                objects.mib(store.nbytes),
            )

    def stats(self) -> dict[str, Any]:
        """Returns the ``images`` in each store, the ``bytes`` taken and the ``budget``."""
        stores = {"decoded_cache": self.pixels, "jpeg_index": self.indexes}
        return {
            name: {"images": store.kept, "bytes": store.used, "budget": store.nbytes}
            for name, store in stores.items()
            if store is not None
        }

    def _begin_index(self, table: DatasetTable, where: Any) -> None:
        store = _store(len(table), _index_budget(), 0, "no entry index is kept")
        self.indexes = store
        if where == "auto" or store is None:
            return
        self._path = Path(os.fspath(where))
        try:
            saved_store.load(store, self._path, _fingerprint(table))
        except FileNotFoundError:
            log.info("the first epoch makes %s", self._path)
        except (OSError, SavedStoreMismatch) as error:
            log.warning("the entry index is made anew: %s", error)
        self._saved = store.kept

    def _save_index(self) -> None:
        store, table = self.indexes, self._table
        if store is None or table is None or self._path is None or store.kept == self._saved:
            return
        self._saved = store.kept
        try:
            saved_store.save(store, self._path, _fingerprint(table))
        except OSError as error:
            log.warning("the entry index is not saved: %s", error)
            self._path = None


def explain(options: LoaderOptions, why_not: str) -> list[str]:
    """Returns lines for ``explain()``."""
    lines = []
    if options.cache is not None:
        used = "decoded cache: epochs after the first decode nothing that is in it"
        lines.append(f"no decoded cache: {why_not}" if why_not else used)
    if options.jpeg_index is not None:
        used = "entry index: epochs after the first begin to decode near the crop"
        lines.append(f"no entry index: {why_not}" if why_not else used)
    return lines


def _fingerprint(table: DatasetTable) -> bytes:
    return saved_store.fingerprint([table.path(item) for item in range(len(table))])


def _pixel_store(files: int, budget: int) -> FileStore | None:
    """Returns a store of ``budget`` bytes, or of less where ``/dev/shm`` is small."""
    free = objects.free()
    spared = int(free * _SPARED_SHARE)
    available = free - spared
    if available < budget:
        log.warning(
            "the decoded cache has %s instead of %s: that is what /dev/shm has free, less an "
            "eighth for batches. Make it larger (docker run --shm-size=..., in Kubernetes an "
            "emptyDir with medium: Memory mounted at /dev/shm, elsewhere mount -o "
            "remount,size=... /dev/shm)",
            objects.mib(available),
            objects.mib(budget),
        )
        budget = available
    return _store(files, budget, spared, "no image is kept decoded")


def _index_budget() -> int:
    return min(_INDEX_BYTES, int(objects.free() * _INDEX_SHARE))


def _places(options: LoaderOptions, budget: int, least: int) -> int:
    """Returns how many files a store has places for, of which hashing finds one.

    Samples may have several files, and streams have no length: then as many as there is room for.
    """
    most = budget // least
    dataset: Any = options.dataset
    try:
        return max(1, min(_PLACES_PER_SAMPLE * len(dataset), most))
    except Exception:  # of user code: it may have none, in whatever way it says so
        return max(1, most)


def _handle(store: FileStore | None) -> StoreHandle | None:
    if store is None:
        return None
    return StoreHandle(Descriptor(store.fd), store.nbytes, store.files)


def _store(files: int, budget: int, spared: int, otherwise: str) -> FileStore | None:
    try:
        return FileStore(files, budget, spared)
    except (SharedMemoryExhausted, ValueError) as error:
        log.warning("%s: %s", otherwise, error)
        return None
