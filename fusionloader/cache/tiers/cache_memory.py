"""The memory of a cache for one dataset: a store for each tier, in memory and on a disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fusionloader.cache.tiers import disk_store
from fusionloader.cache.tiers.file_store import FileStore, table_bytes
from fusionloader.cache.tiers.ledger import Ledger
from fusionloader.cache.tiers.store_handles import STORES, StoreHandles
from fusionloader.system.shm.objects import SharedPage

TIERS = ("index", "encoded", "decoded")
_SPARED_SHARE = 1 / 32  # fraction of the machine's memory that stays free for other processes

# As csrc/worker/cache_control.hpp begins.
_FIELDS = ("magic", "samples", "room", "workers", "cores")
_CONTROL = np.dtype([(name, np.uint64) for name in _FIELDS])
_MAGIC = b"FLcontr1"  # another layout has another number


class CacheControl(SharedPage):
    """The page of ``csrc/worker/cache_control.hpp``, by which workers choose a tier.

    They measure samples, and decide when they have measured enough; this class only sets what they
    have to know for that.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._words = np.frombuffer(self._page, _CONTROL, 1)

    @classmethod
    def create(cls, samples: int, room: int) -> CacheControl:
        """Makes a page for ``samples`` samples, and ``room`` bytes to cache them in."""
        control = cls(cls._made("cache-control", _MAGIC))
        control._words["samples"], control._words["room"] = samples, room
        control.expect(1, 1)
        return control

    def expect(self, workers: int, cores: int) -> None:
        """Sets the numbers of workers and of cores for them, before workers measure."""
        self._words["workers"], self._words["cores"] = workers, cores


@dataclass(frozen=True, slots=True)
class TierUsage:
    """The contents of a store.

    Attributes:
        images: number of images.
        nbytes: bytes in use, with the table.
        closed: whether the system ran out of space before the store was full.
        damaged: number of images whose data on the disk did not match its checksum.
    """

    images: int
    nbytes: int
    closed: bool
    damaged: int


class DatasetMemory:
    """The stores of a dataset, under the ledger of a cache.

    Attributes:
        ledger: ledger of the cache.
        control: page with the workers' measurements, and the tier that they chose.
        stores: stores by name, one of ``STORES``.
    """

    def __init__(
        self, ledger: Ledger, control: CacheControl, stores: Mapping[str, FileStore]
    ) -> None:
        self.ledger, self.control, self.stores = ledger, control, dict(stores)
        self._pages = 0  # bytes charged for the control page

    @classmethod
    def create(
        cls,
        ledger: Ledger,
        files: int,
        tiers: Sequence[str],
        folder: Path | None = None,
        fingerprint: str = "",
        samples: int | None = None,
    ) -> DatasetMemory:
        """Makes empty stores in memory, and opens those that earlier jobs left on a disk.

        Args:
            ledger: ledger of the cache.
            files: number of records.
            tiers: names from ``TIERS``.
            folder: folder of the disk stores; ``None`` without a disk.
            fingerprint: digest of the files.
            samples: number of samples, if that differs from ``files``.

        Raises:
            ValueError: the ledger has too little left for the tables of the stores.
            SharedMemoryExhausted: there is too little memory for the tables.
            OSError: the folder cannot be used.
        """
        if not ledger.memory.limit and folder is None:
            table = table_bytes(files)
            raise ValueError(f"{files} files need a table of {table} bytes, there are none")
        left = ledger.memory.limit - ledger.memory.used + ledger.disk.limit - ledger.disk.used
        control = CacheControl.create(samples or files, left)
        memory = cls(ledger, control, {})
        try:
            if ledger.charge(control.nbytes):
                memory._pages = control.nbytes
            elif ledger.memory.limit:
                raise ValueError(f"{control.nbytes} bytes are needed, there are none left")
            for tier in tiers:
                if ledger.memory.limit:
                    room = ledger.memory.limit
                    memory.stores[tier] = FileStore(files, room, _spared(), ledger)
                if folder is not None and tier != "index":
                    path = folder / f"{fingerprint}-{tier}.cache"
                    digest = hashlib.sha256(f"{fingerprint}\0{tier}".encode()).digest()
                    memory.stores[f"disk_{tier}"] = disk_store.open_store(
                        path, files, digest, ledger
                    )
        except BaseException:
            memory.free()
            raise
        return memory

    @classmethod
    def of(cls, fds: Mapping[str, int], nbytes: Mapping[str, int]) -> DatasetMemory:
        """Opens the memory behind descriptors by name, of which it duplicates each.

        Raises:
            OSError: too many files are open.
        """
        names = [name for name in STORES if name in fds]
        copies: list[int] = []
        try:
            # One call, which keeps what it has made before an error.
            copies.extend(map(os.dup, map(fds.__getitem__, ("ledger", "control_page", *names))))
            copies.reverse()
            ledger, control = Ledger(copies.pop()), CacheControl(copies.pop())
            stores = {name: _opened(copies.pop(), nbytes[name]) for name in names}
            return cls(ledger, control, stores)
        except BaseException:
            for fd in copies:
                os.close(fd)
            raise

    def fds(self) -> dict[str, int]:
        stores = {name: store.fd for name, store in self.stores.items()}
        return {"ledger": self.ledger.fd, "control_page": self.control.fd, **stores}

    @property
    def nbytes(self) -> dict[str, int]:
        return {name: store.nbytes for name, store in self.stores.items()}

    def handles(self) -> StoreHandles:
        mapped = {name: store.mapped for name, store in self.stores.items()}
        return StoreHandles(self.fds(), mapped)

    def usage(self) -> dict[str, TierUsage]:
        return {
            name: TierUsage(store.kept, store.used, store.closed, store.damaged)
            for name, store in self.stores.items()
        }

    def free(self) -> None:
        """Closes everything and refunds the charges. Only the process that made it may call it."""
        self.ledger.refund(self._pages)
        for name, store in self.stores.items():
            self.ledger.refund(store.used, disk=name.startswith("disk_"))
        self.close()

    def close(self) -> None:
        """Closes the descriptors, except that of the ledger, which other datasets use."""
        self.control.close()
        for store in self.stores.values():
            store.close()


def _opened(fd: int, nbytes: int) -> FileStore:
    try:
        return FileStore.of_descriptor(fd, nbytes)
    except Exception:
        os.close(fd)
        raise


def _spared() -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _SPARED_SHARE)
