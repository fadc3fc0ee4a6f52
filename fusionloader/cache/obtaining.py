"""The memory that a loader's cache has for a dataset: shared by the user's jobs on this machine."""

from __future__ import annotations

import logging
import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from fusionloader.cache import client, room
from fusionloader.cache.client import Attached, HolderRefused, HolderUnavailable
from fusionloader.cache.requests import CacheRequest, ledger_token
from fusionloader.cache.tiers.cache_memory import DatasetMemory
from fusionloader.cache.tiers.ledger import Ledger
from fusionloader.options.cache_settings import Cache
from fusionloader.system.shm.objects import SharedMemoryExhausted

log = logging.getLogger("fusionloader.cache")


@dataclass(frozen=True, slots=True)
class WantedCache:
    """For which files memory is wanted.

    Attributes:
        fingerprint: of the files.
        places: records for them.
        samples: of the dataset.
        name: of the dataset, for people.
        shared: whether other machines ask for the files: then no pixels take the room for these.
    """

    fingerprint: str
    places: int
    samples: int
    name: str
    shared: bool = False

    def tiers(self, cache: Cache) -> tuple[str, ...]:
        """Returns the tiers of a cache that are of use."""
        return tuple(tier for tier in cache.tiers if tier != "decoded" or not self.shared)


@dataclass(frozen=True, slots=True)
class Obtained:
    """Memory for a dataset, for as long as this is there.

    Attributes:
        memory: the stores.
        attached: the use of the holder's memory; ``None`` where this process made its own.
    """

    memory: DatasetMemory
    attached: Attached | None = None


@dataclass  # without slots: weak references need Python 3.11 there
class _Held:
    """What a ``Cache`` object has in this process; it lives as long as that object."""

    datasets: dict[WantedCache, Obtained] = field(default_factory=dict)
    ledger: Ledger | None = None  # of memory that this process made


_held: weakref.WeakValueDictionary[str, _Held] = weakref.WeakValueDictionary()


def obtain(cache: Cache, wanted: WantedCache) -> Obtained | None:
    """Returns memory under the budget of a cache; ``None``, with a warning, where there is none.

    Raises:
        CacheTooLarge: the machine has less than the budget.
        OSError: the folder on the disk cannot be used.
    """
    room.check(cache)
    held = _held.get(cache.token)
    if held is None:
        held = _held[cache.token] = _Held()
    # A loader that is made anew for each epoch finds what the last one has kept.
    object.__setattr__(cache, "_held", held)
    if wanted not in held.datasets:
        obtained = _obtained(cache, wanted, held)
        if obtained is None:
            return None
        held.datasets[wanted] = obtained
    return held.datasets[wanted]


def _obtained(cache: Cache, wanted: WantedCache, held: _Held) -> Obtained | None:
    try:
        return _shared(cache, wanted)
    except HolderRefused as error:  # memory of this process's own would be more than the budget
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
    fds = {name: os.dup(fd) for name, fd in attached.fds.items()}
    return Obtained(DatasetMemory.of(fds, attached.nbytes), attached)


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
