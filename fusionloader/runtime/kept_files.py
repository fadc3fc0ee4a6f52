"""What a loader keeps of its files from epoch to epoch, and how much shared memory that takes."""

from __future__ import annotations

import logging
from typing import Any

from fusionloader.options import DecodedCache
from fusionloader.shm import objects
from fusionloader.shm.dataset_table import DatasetTable
from fusionloader.shm.file_store import FileStore
from fusionloader.shm.objects import SharedMemoryExhausted

log = logging.getLogger("fusionloader.loader")

# Of what is free in /dev/shm: left to batches.
_SPARED_SHARE = 1 / 8


class KeptFiles:
    """The stores of a loader, made once while its dataset stays the same.

    Attributes:
        pixels: decoded images, ``None`` without a ``DecodedCache`` or without room for one.
    """

    def __init__(self) -> None:
        self.pixels: FileStore | None = None
        self._table: DatasetTable | None = None
        self._cache: DecodedCache | None = None
        self._said_closed = False

    def of(self, loader: Any, table: DatasetTable, holds_files: bool) -> KeptFiles:
        """Returns this, for the files of ``table``; what was kept of another table is dropped."""
        if table is not self._table or loader.cache != self._cache:
            self._table, self._cache = table, loader.cache
            self.pixels = None
            self._said_closed = False
            if loader.cache is not None and holds_files:
                self.pixels = _store(len(table), loader.cache.nbytes)
        return self

    def epoch_ended(self) -> None:
        """Says once that ``/dev/shm`` is full."""
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
        """Returns ``decoded_cache``: ``images``, ``bytes`` taken and the ``budget``."""
        if self.pixels is None:
            return {}
        store = self.pixels
        return {
            "decoded_cache": {
                "images": store.kept,
                "bytes": store.used,
                "budget": store.nbytes,
            }
        }


def explain(why_not: str) -> str:
    """Returns a line for ``explain()``."""
    if why_not:
        return f"no decoded cache: {why_not}"
    return "decoded cache: epochs after the first decode nothing that is in it"


def _store(files: int, budget: int) -> FileStore | None:
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
    try:
        return FileStore(files, budget, spared)
    except (SharedMemoryExhausted, ValueError) as error:
        log.warning("no image is kept decoded: %s", error)
        return None
