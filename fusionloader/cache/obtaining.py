"""Gets the memory of a loader's cache for a dataset, which the user's jobs on a machine share."""

from __future__ import annotations

import errno
import logging
import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from fusionloader.cache import client
from fusionloader.cache.client import Attached, HolderRefused, HolderUnavailable
from fusionloader.cache.requests import CacheRequest, ledger_token
from fusionloader.cache.tiers.cache_memory import DatasetMemory
from fusionloader.cache.tiers.ledger import Ledger
from fusionloader.options.cache_settings import Cache
from fusionloader.system.amounts import mib
from fusionloader.system.limits import control_groups
from fusionloader.system.limits.anonymous_memory import DEV_SHM
from fusionloader.system.limits.free_memory import dev_shm
from fusionloader.system.shm.objects import SharedMemoryExhausted

log = logging.getLogger("fusionloader.cache")

_MOST_DATASETS = 12  # whose memory is kept for later loaders, under one cache


class CacheTooLarge(ValueError):
    """The budget exceeds what the machine has, used or not."""


@dataclass(frozen=True, slots=True)
class WantedCache:
    """The files that memory is requested for.

    Attributes:
        fingerprint: digest of the files.
        places: number of records for them.
        samples: number of samples in the dataset.
        name: name of the dataset for messages.
        shared: whether other machines request the files. Then no pixels are cached, so that all
            memory is for files.
    """

    fingerprint: str
    places: int
    samples: int
    name: str
    shared: bool = False

    def tiers(self, cache: Cache) -> tuple[str, ...]:
        """Returns the tiers of a cache that are used for these files."""
        return tuple(tier for tier in cache.tiers if tier != "decoded" or not self.shared)


@dataclass(frozen=True, slots=True)
class Obtained:
    """Memory for a dataset, as long as this object exists.

    Attributes:
        memory: the stores.
        attached: the use of the holder's memory; ``None`` if this process made its own.
    """

    memory: DatasetMemory
    attached: Attached | None = None


@dataclass  # without slots: weak references need Python 3.11 there
class _Held:
    """The memory of a ``Cache`` object in this process, which lives as long as that object."""

    datasets: dict[WantedCache, Obtained] = field(default_factory=dict)
    ledger: Ledger | None = None  # for memory that this process made


_held: weakref.WeakValueDictionary[str, _Held] = weakref.WeakValueDictionary()


def obtain(cache: Cache, wanted: WantedCache) -> Obtained | None:
    """Returns memory under the budget of a cache; ``None``, with a warning, if that is used up.

    Also if the disk has no room for the folder.

    Raises:
        CacheTooLarge: the budget exceeds what the machine has.
        OSError: the folder on the disk cannot be used.
    """
    try:
        check_capacity(cache)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.warning("nothing of %s is cached: %s", wanted.name or "the dataset", error)
        return None
    held = _held.get(cache.token)
    if held is None:
        held = _held[cache.token] = _Held()
    # The reference on ``cache`` keeps the memory for the next loader with the same cache.
    object.__setattr__(cache, "_held", held)
    obtained = held.datasets.pop(wanted, None) or _obtained(cache, wanted, held)
    if obtained is not None:
        held.datasets[wanted] = obtained  # as the last one
        for oldest in list(held.datasets)[:-_MOST_DATASETS]:  # such as subsets of earlier epochs
            del held.datasets[oldest]
    return obtained


def _obtained(cache: Cache, wanted: WantedCache, held: _Held) -> Obtained | None:
    try:
        return _shared(cache, wanted)
    except HolderRefused as error:  # private memory would exceed the budget
        log.warning("nothing of %s is cached: %s", wanted.name or "the dataset", error)
        return None
    except (HolderUnavailable, OSError) as error:
        log.warning("the cache is not shared with other processes: %s", error)
        return _private(cache, wanted, held)


def _shared(cache: Cache, wanted: WantedCache) -> Obtained:
    request = CacheRequest(
        token=ledger_token(cache.token, repr(cache)),
        memory=cache.memory_bytes,
        disk=cache.disk_bytes,
        fingerprint=wanted.fingerprint,
        files=wanted.places,
        samples=wanted.samples,
        tiers=wanted.tiers(cache),
        path=None if cache.path is None else os.path.abspath(cache.path),
        name=wanted.name or "a dataset",
    )
    attached = client.attach(request)
    return Obtained(DatasetMemory.of(attached.fds, attached.nbytes), attached)


def _private(cache: Cache, wanted: WantedCache, held: _Held) -> Obtained | None:
    if held.ledger is None:
        held.ledger = Ledger.create(cache.memory_bytes, cache.disk_bytes)
    folder = None if cache.path is None else Path(os.path.abspath(cache.path))
    try:
        memory = DatasetMemory.create(
            held.ledger,
            wanted.places,
            wanted.tiers(cache),
            folder,
            wanted.fingerprint,
            wanted.samples,
        )
    except (SharedMemoryExhausted, ValueError, OSError) as error:
        log.warning("nothing of %s is cached: %s", wanted.name or "the dataset", error)
        return None
    return Obtained(memory)


# ---- capacity ----------------------------------------------------------------------------------


def check_capacity(cache: Cache) -> None:
    """Raises CacheTooLarge if memory or disk is smaller than the budget, OSError without a disk.

    Current use by other processes does not count, because it may end before the cache grows.
    """
    if cache.memory_bytes > (most := memory_capacity()):
        raise CacheTooLarge(
            f"the cache may take {mib(cache.memory_bytes)} of memory, and this machine (or its "
            f"control group, or {DEV_SHM} where memfd_create is refused) has {mib(most)}: give it "
            "a smaller budget, or a path on a disk"
        )
    if cache.path is not None:
        _check_disk(Path(os.fspath(cache.path)), cache.disk_bytes)


def _check_disk(folder: Path, wanted: int) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"the cache cannot write to {folder}: give another path")
    system = os.statvfs(folder)
    most = system.f_blocks * system.f_frsize
    if wanted > most:
        raise CacheTooLarge(
            f"the cache may take {mib(wanted)} of {folder}, and that disk has {mib(most)}: give it "
            "a smaller budget"
        )


def memory_capacity() -> int:
    """Returns the most bytes of shared memory that this process could ever have.

    The limits are the machine, the control groups, and ``/dev/shm`` if shared memory lies there.
    """
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (limit := control_groups.memory_limit()) is not None:
        most = min(most, limit.most)
    if (system := dev_shm()) is not None:
        most = min(most, system.f_blocks * system.f_frsize)
    return most
