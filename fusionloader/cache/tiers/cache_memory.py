"""What a cache keeps of one dataset: a store for each tier, in memory and on a disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusionloader.cache.tiers import disk_store
from fusionloader.cache.tiers.cache_control import CacheControl
from fusionloader.cache.tiers.file_store import FileStore, table_bytes
from fusionloader.cache.tiers.ledger import Ledger
from fusionloader.cache.tiers.store_handles import STORES, StoreHandles

TIERS = ("index", "encoded", "decoded")
_SPARED_SHARE = 1 / 32  # of the machine's memory, for others


@dataclass(frozen=True, slots=True)
class TierUsage:
    """What a store holds: images, and bytes with its table.

    Attributes:
        closed: whether the system had no more room before the store was full.
        damaged: images whose data on the disk was found not to be what was written.
    """

    images: int
    nbytes: int
    closed: bool
    damaged: int


class DatasetMemory:
    """The stores of a dataset, under the ledger of a cache.

    Attributes:
        ledger: of the cache.
        control: what is measured of the dataset, and which tier is best for it.
        stores: by name, of ``STORES``.
    """

    def __init__(
        self, ledger: Ledger, control: CacheControl, stores: Mapping[str, FileStore]
    ) -> None:
        self.ledger, self.control, self.stores = ledger, control, dict(stores)
        self._pages = 0  # that were charged for the control page

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
        """Makes empty stores, on a disk such as have been left there by an earlier job.

        Args:
            ledger: of the cache.
            files: how many there are.
            tiers: of ``TIERS``.
            folder: on the disk; ``None`` where nothing is kept on one.
            fingerprint: of the files.
            samples: of the dataset, where there are more records than these.

        Raises:
            ValueError: the ledger has too little left for the tables of the files.
            SharedMemoryExhausted: there is no memory for them.
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
        """Returns the memory behind descriptors of these names, which it then owns."""
        stores = {
            name: FileStore.of_descriptor(fds[name], nbytes[name]) for name in STORES if name in fds
        }
        return cls(Ledger(fds["ledger"]), CacheControl(fds["control_page"]), stores)

    def fds(self) -> dict[str, int]:
        """Returns the descriptors by name."""
        stores = {name: store.fd for name, store in self.stores.items()}
        return {"ledger": self.ledger.fd, "control_page": self.control.fd, **stores}

    @property
    def nbytes(self) -> dict[str, int]:
        """The sizes of the stores."""
        return {name: store.nbytes for name, store in self.stores.items()}

    def handles(self) -> StoreHandles:
        """Returns the stores for another process."""
        mapped = {name: store.mapped for name, store in self.stores.items()}
        return StoreHandles(self.fds(), mapped)

    def usage(self) -> dict[str, TierUsage]:
        """Returns what each store holds."""
        return {
            name: TierUsage(store.kept, store.used, store.closed, store.damaged)
            for name, store in self.stores.items()
        }

    def free(self) -> None:
        """Closes everything and takes what was charged back; for who made it."""
        self.ledger.refund(self._pages)
        for name, store in self.stores.items():
            self.ledger.refund(store.used, disk=name.startswith("disk_"))
        self.close()

    def close(self) -> None:
        """Closes the descriptors but for the ledger's, which others may use."""
        self.control.close()
        for store in self.stores.values():
            store.close()


def _spared() -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _SPARED_SHARE)
