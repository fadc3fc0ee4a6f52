"""The caches of one loader: encoded files, decoded images, and an index of JPEG entries."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

from fusionloader.cache import obtaining
from fusionloader.cache.obtaining import Obtained, WantedCache
from fusionloader.cache.servers import joining
from fusionloader.cache.servers.joining import Joined
from fusionloader.cache.store_stats import DISK, JPEG_INDEX, MEMORY, NAMES_IN_STATS, StoreStats
from fusionloader.cache.tiers import saved_store, store_handles
from fusionloader.cache.tiers.cache_memory import DatasetMemory
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.cache.tiers.file_store import FileStore
from fusionloader.cache.tiers.saved_store import SavedStoreMismatch
from fusionloader.cache.tiers.store_handles import StoreHandles
from fusionloader.options.cache_settings import Cache
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.system.amounts import mib
from fusionloader.system.limits.control_groups import cpu_quota
from fusionloader.system.limits.processors import cores_allowed
from fusionloader.system.shm.objects import SharedMemoryExhausted

log = logging.getLogger("fusionloader.loader")

# Limits of an index: enough bytes for ImageNet, and a fraction of the machine's memory.
_INDEX_BYTES, _INDEX_SHARE = 2 << 30, 1 / 4
# For images that user code opens: records per sample, and assumed least bytes of an image and of
# its index.
_PLACES_PER_SAMPLE, _LEAST_IMAGE, _LEAST_INDEX = 4, 16 << 10, 1 << 10


class LoaderCache:
    """The stores of a loader, kept while its dataset and its options stay the same.

    Attributes:
        joined: connection to the caches of other machines; ``None`` without other machines.
    """

    def __init__(self) -> None:
        self._obtained: Obtained | None = None
        self.joined: Joined | None = None
        self._index: FileStore | None = None  # of the option jpeg_index
        # Weakly: a program may keep every loader that it has made.
        self._table: weakref.ref[DatasetTable] | None = None
        self._options: tuple[Any, ...] = ()
        self._said: set[str] = set()
        self._path: Path | None = None
        self._saved = 0

    @property
    def memory(self) -> DatasetMemory | None:
        """The cache's memory for the dataset; ``None`` without a cache, or without memory."""
        return None if self._obtained is None else self._obtained.memory

    def for_table(
        self, options: LoaderOptions, table: DatasetTable, holds_files: bool
    ) -> LoaderCache:
        """Prepares stores for the files of ``table``, drops older ones, and returns ``self``."""
        try:
            if self._begins_anew(options, table):
                files = len(table)
                if options.cache is not None and holds_files:
                    shared = joining.is_shared(options.cache)
                    if shared and table.is_remote:
                        log.warning("cache servers are not used: %s", _NOT_OF_URLS)
                        shared = False
                    wanted = WantedCache(
                        digest_files(table), files, files, find_folder(table), shared
                    )
                    self._obtain(options, options.cache, wanted)
                    if self.memory is not None and shared:
                        stores = self.memory.handles()
                        self.joined = joining.join(options.cache, wanted.fingerprint, stores)
                if options.jpeg_index is not None and holds_files:
                    self._begin_index(table, options.jpeg_index)
        except BaseException:
            self._options = ()  # so that the next call begins anew, and may raise again
            raise
        return self

    def for_images(self, options: LoaderOptions) -> StoreHandles:
        """Returns stores for the images that user code opens in workers."""
        try:
            if self._begins_anew(options, None):
                if options.cache is not None:
                    budget = options.cache.memory_bytes + options.cache.disk_bytes
                    samples, places = _places(options, budget, _LEAST_IMAGE)
                    name = type(options.dataset).__name__
                    wanted = WantedCache(digest_places(places), places, samples, name)
                    self._obtain(options, options.cache, wanted)
                if options.jpeg_index is not None:
                    budget = _index_budget()
                    self._index = _index_store(_places(options, budget, _LEAST_INDEX)[1], budget)
                if options.jpeg_index not in (None, "auto"):
                    log.warning("the entry index of files that user code opens is not saved")
        except BaseException:
            self._options = ()
            raise
        return self.handles()

    def handles(self) -> StoreHandles:
        handles = self.memory.handles() if self.memory is not None else StoreHandles({}, {})
        if self._index is None:
            return handles
        fds = {**handles.fds, store_handles.JPEG_INDEX: self._index.fd}
        mapped = {**handles.mapped, store_handles.JPEG_INDEX: self._index.mapped}
        return StoreHandles(fds, mapped)

    def _obtain(self, options: LoaderOptions, cache: Cache, wanted: WantedCache) -> None:
        self._obtained = obtaining.obtain(cache, wanted)
        if self._obtained is not None:
            self._obtained.memory.control.expect(options.num_workers, _cores())

    def _begins_anew(self, options: LoaderOptions, table: DatasetTable | None) -> bool:
        """Drops the stores if the table or the options have changed; returns whether it did."""
        held = None if table is None else weakref.ref(table)
        wanted = (held, options.cache, options.jpeg_index)
        if wanted == self._options:
            return False
        self._table, self._options = held, wanted
        self._obtained = self.joined = self._index = self._path = None
        self._said.clear()
        return True

    def epoch_ended(self) -> None:
        """Saves the index if it has grown, and logs once if a store is full or damaged."""
        self._save_index()
        for name, usage in self.memory.usage().items() if self.memory is not None else ():
            if usage.closed and name not in self._said:
                self._said.add(name)
                log.warning(
                    "the %s is full: the cache stays at %d images and %s there; the others are "
                    "read in every epoch",
                    "disk" if name.startswith("disk_") else "memory",
                    usage.images,
                    mib(usage.nbytes),
                )
            if usage.damaged and f"{name} damaged" not in self._said:
                self._said.add(f"{name} damaged")
                log.warning("%d images on the disk were damaged, and read anew", usage.damaged)

    def stats(self) -> dict[str, StoreStats]:
        """Returns the contents of each store, and of the cache's memory and disk accounts."""
        found: dict[str, StoreStats] = {}
        if self.memory is not None:
            memory, disk = self.memory.ledger.memory, self.memory.ledger.disk
            for name, usage in self.memory.usage().items():
                budget = disk.limit if name.startswith("disk_") else memory.limit
                found[NAMES_IN_STATS.get(name, name)] = StoreStats(
                    usage.images, usage.nbytes, budget
                )
            found[MEMORY] = StoreStats(0, memory.used, memory.limit)
            found[DISK] = StoreStats(0, disk.used, disk.limit)
        if self._index is not None:
            index = self._index
            found[JPEG_INDEX] = StoreStats(index.kept, index.used, index.nbytes)
        return found

    def _begin_index(self, table: DatasetTable, where: Any) -> None:
        store = self._index = _index_store(len(table), _index_budget())
        if where == "auto" or store is None:
            return
        self._path = Path(os.fspath(where))
        try:
            saved_store.load(store, self._path, _fingerprint(table), partial(_stamp, table))
        except FileNotFoundError:
            log.info("the first epoch makes %s", self._path)
        except (OSError, SavedStoreMismatch) as error:
            log.warning("the entry index is made anew: %s", error)
        self._saved = store.kept

    def _save_index(self) -> None:
        store, table = self._index, None if self._table is None else self._table()
        if store is None or table is None or self._path is None or store.kept == self._saved:
            return
        self._saved = store.kept
        try:
            saved_store.save(store, self._path, _fingerprint(table))
        except OSError as error:
            log.warning("the entry index is not saved: %s", error)
            self._path = None


_NOT_OF_URLS = "samples are at URLs, and each machine reads and keeps its own"


def explain(options: LoaderOptions, why_not: str, are_remote: bool) -> list[str]:
    """Returns the lines of ``explain()`` about caches.

    Args:
        options: the loader's options.
        why_not: why nothing is cached; empty if something may be.
        are_remote: whether the samples are at URLs.
    """
    lines = []
    if options.cache is not None:
        tiers = ", ".join(options.cache.tiers)
        saved = "neither read nor decode" if "decoded" in options.cache.tiers else "do not read"
        used = f"cache ({tiers}): epochs after the first {saved} what is in it"
        lines.append(f"no cache: {why_not}" if why_not else used)
        if not why_not and joining.is_shared(options.cache):
            used = "cache servers: each machine keeps its part of the files for all others"
            lines.append(f"no cache servers: {_NOT_OF_URLS}" if are_remote else used)
    if options.jpeg_index is not None:
        used = "entry index: epochs after the first begin to decode near the crop"
        lines.append(f"no entry index: {why_not}" if why_not else used)
    return lines


def _fingerprint(table: DatasetTable) -> bytes:
    if table.ranges is not None:
        return digest_files(table).encode()
    return saved_store.fingerprint([table.path(item) for item in range(len(table))])


def _stamp(table: DatasetTable, item: int) -> tuple[int, int]:
    """Returns the stamp that workers give to the index of a sample."""
    path, _, size, _, mtime_ns = table.range(item)
    if table.ranges is not None:
        return size, mtime_ns
    try:
        info = os.stat(path)
    except OSError:
        return 0, 0
    return info.st_size, info.st_mtime_ns


def _cores() -> int:
    quota, cores = cpu_quota(), cores_allowed()
    cores = cores if quota is None else min(cores, round(quota))
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, cores // max(1, int(ranks) if ranks.isdecimal() else 1))


def _index_budget() -> int:
    return min(_INDEX_BYTES, int(obtaining.memory_capacity() * _INDEX_SHARE))


def _places(options: LoaderOptions, budget: int, least: int) -> tuple[int, int]:
    """Returns the number of samples, and that of records for their files, which hashing finds.

    A sample may have several files. For streams, which have no length, both are the most records
    that ``budget`` bytes allow if each file takes ``least`` bytes.
    """
    most = max(1, budget // least)
    dataset: Any = options.dataset
    try:
        samples = len(dataset)
    except Exception:  # user code may refuse with any exception
        return most, most
    return max(1, samples), max(1, min(_PLACES_PER_SAMPLE * samples, most))


def _index_store(files: int, budget: int) -> FileStore | None:
    try:
        return FileStore(files, budget)
    except (SharedMemoryExhausted, ValueError) as error:
        log.warning("no entry index is kept: %s", error)
        return None


# ---- fingerprints ------------------------------------------------------------------------------


def digest_files(table: DatasetTable) -> str:
    """Returns a digest of paths and ranges, equal for loaders with the same files in one order."""
    digest = hashlib.blake2b(table.blob.data, digest_size=16, person=b"files of a table")
    if table.ranges is not None:
        digest.update(table.ranges.data)
        digest.update(table.sizes.data)
    if len(table) and not table.is_remote and not table.path(0).startswith(b"/"):
        digest.update(os.fsencode(os.getcwd()))
    return digest.hexdigest()


def digest_places(places: int) -> str:
    """Returns a digest for files that user code opens, in a store of ``places`` records.

    Files are identified by device, inode, size and time, so all datasets can share the store. It
    depends on Python's hashes, which find the records.
    """
    text = f"{places} {sys.hash_info} {sys.implementation.cache_tag}"
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"files of code").hexdigest()


def find_folder(table: DatasetTable) -> str:
    """Returns the dataset's folder for messages: that of the first shard, or of the classes."""
    if not len(table):
        return ""
    folder = os.path.dirname(table.path(0))
    return os.fsdecode(folder if table.ranges is not None else os.path.dirname(folder))
