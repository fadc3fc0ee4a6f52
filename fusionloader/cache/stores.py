"""The state of the holder: ledgers, the datasets under each, and their users.

A user is one connection. The first user of a dataset decides under which ledger its memory is made;
later users of the same files get that memory, whatever ledger they request. A ledger is freed, with
all its datasets, when its last user leaves. Single datasets are not freed before, because another
loader may use the same files next. This module has no I/O and no sockets.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fusionloader.cache.requests import CacheRequest
from fusionloader.cache.tiers.cache_memory import DatasetMemory
from fusionloader.cache.tiers.ledger import Ledger
from fusionloader.system.fd_messages import Fields

log = logging.getLogger("fusionloader.cache")

_SHORT = 12  # characters of a fingerprint that are shown
_CANNOT_MAKE = (OSError, ValueError, RuntimeError, OverflowError, MemoryError)


class RequestRefused(Exception):
    """The holder refuses a request; the text says why, for the user who made it."""


@dataclass(frozen=True, slots=True)
class ServedBudget:
    """The budget of ``cache serve``: bytes of memory and disk, and the disk's folder."""

    memory: int
    disk: int = 0
    path: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class User:
    """A connection that may use a dataset. ``pid`` is 0 if the process is in another namespace."""

    pid: int


@dataclass(slots=True, eq=False)
class HeldLedger:
    """A budget, and the datasets that are charged to it. ``served`` ledgers outlive their users."""

    token: str
    ledger: Ledger
    path: str | None
    served: bool
    datasets: list[HeldDataset] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class HeldDataset:
    """A dataset's memory and its users."""

    memory: DatasetMemory
    held: HeldLedger
    fingerprint: str
    files: int
    tiers: tuple[str, ...]
    name: str
    users: set[User] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{readable(self.name)} ({self.fingerprint[:_SHORT]}, {self.files} files)"


class CacheStores:
    """All ledgers and datasets of a holder. With ``served``, that is the only budget."""

    def __init__(self, served: ServedBudget | None = None) -> None:
        """Makes the served budget's ledger.

        Raises:
            ValueError: the budget is larger than the machine's memory.
            OSError: the ledger cannot be made.
        """
        self._ledgers: dict[str, HeldLedger] = {}  # by token
        self._dataset_of: dict[User, HeldDataset] = {}
        self._served: HeldLedger | None = None
        if served is not None:
            ledger = _make_ledger(served.memory, served.disk)
            self._served = HeldLedger("", ledger, served.path, True)
            self._ledgers[""] = self._served  # a request's token is never empty

    def is_used_by(self, user: User) -> bool:
        return user in self._dataset_of

    def is_empty(self) -> bool:
        return not self._ledgers

    def attach(self, user: User, request: CacheRequest) -> HeldDataset:
        """Returns the memory of the requested files, and makes it for the first user.

        Raises:
            RequestRefused: it cannot be made, or contradicts the existing memory.
        """
        if self.is_used_by(user):
            raise RequestRefused("this connection uses a dataset already")
        path = self._served.path if self._served is not None else request.path
        dataset = self._find(request, path)
        if dataset is None:
            dataset = self._make(request, path)
            log.info("pid %d begins %s", user.pid, dataset)
        elif dataset.files != request.files:
            raise RequestRefused(
                f"{dataset} is held, and a dataset of {request.files} files has its fingerprint"
            )
        else:
            log.info("pid %d joins %s", user.pid, dataset)
        dataset.users.add(user)
        self._dataset_of[user] = dataset
        return dataset

    def leave(self, user: User) -> None:
        """Removes a user, and frees its ledger if it was the last one."""
        dataset = self._dataset_of.pop(user, None)
        if dataset is None:
            return
        log.info("pid %d leaves %s", user.pid, dataset)
        dataset.users.remove(user)
        held = dataset.held
        if not held.served and not any(dataset.users for dataset in held.datasets):
            self._free(held)

    def drop(self, fingerprint: str) -> list[str]:
        """Frees datasets that have no users; returns their names.

        Args:
            fingerprint: a prefix of one dataset's fingerprint, or ``"all"``.

        Raises:
            RequestRefused: no dataset or several match, or one has users. Memory that a process
                maps would not be freed, but the ledger would allow it a second time.
        """
        found = [
            dataset
            for dataset in self._datasets()
            if fingerprint == "all" or dataset.fingerprint.startswith(fingerprint)
        ]
        if fingerprint != "all":
            self._check_one(fingerprint, found)
        if used := [f"{dataset} is used by {_pids(dataset)}" for dataset in found if dataset.users]:
            raise RequestRefused(f"{'; '.join(used)}: end these processes first")
        for dataset in found:
            self._drop(dataset)
        return [str(dataset) for dataset in found]

    def describe(self) -> list[Fields]:
        """Returns all ledgers and their datasets as JSON values."""
        return [_describe(held) for held in self._ledgers.values()]

    def close(self) -> None:
        """Closes all memory. What processes have mapped stays until they end."""
        for held in list(self._ledgers.values()):
            self._free(held)
        self._dataset_of.clear()

    def _datasets(self) -> Iterator[HeldDataset]:
        for held in self._ledgers.values():
            yield from held.datasets

    def _find(self, request: CacheRequest, path: str | None) -> HeldDataset | None:
        """Returns the dataset with these files and tiers; on a disk, tiers may differ."""
        for dataset in self._datasets():
            same = dataset.fingerprint == request.fingerprint and dataset.held.path == path
            if same and (path is not None or dataset.tiers == request.tiers):
                return dataset
        return None

    def _make(self, request: CacheRequest, path: str | None) -> HeldDataset:
        held = self._served or self._ledgers.get(request.token)
        if held is not None and held.path != path:
            raise RequestRefused(f"its budget is for the folder {held.path!r}, not {path!r}")
        try:
            if held is None:
                ledger = _make_ledger(request.memory, request.disk)
                held = HeldLedger(request.token, ledger, path, False)
            memory = _make_memory(held.ledger, request, path)
        except _CANNOT_MAKE as error:
            if held is not None and not held.datasets and not held.served:
                held.ledger.close()  # it was made for this request
            raise RequestRefused(f"its memory cannot be made: {error}") from error
        dataset = HeldDataset(
            memory, held, request.fingerprint, request.files, request.tiers, request.name
        )
        held.datasets.append(dataset)
        self._ledgers[held.token] = held
        return dataset

    def _check_one(self, fingerprint: str, found: list[HeldDataset]) -> None:
        fingerprints = {dataset.fingerprint for dataset in found}
        if not fingerprints:
            raise RequestRefused(f"no dataset is held whose fingerprint begins with {fingerprint}")
        if len(fingerprints) > 1:
            names = ", ".join(str(dataset) for dataset in found)
            raise RequestRefused(f"{fingerprint} is the beginning of several: {names}")

    def _drop(self, dataset: HeldDataset) -> None:
        log.info("%s is dropped", dataset)
        dataset.memory.free()
        dataset.held.datasets.remove(dataset)

    def _free(self, held: HeldLedger) -> None:
        for dataset in held.datasets:
            dataset.memory.close()
        held.ledger.close()
        self._ledgers = {
            token: other for token, other in self._ledgers.items() if other is not held
        }


def _make_ledger(memory: int, disk: int) -> Ledger:
    """Makes a ledger, limited to the machine's memory, which anonymous memory itself is not."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory > installed:
        raise ValueError(
            f"the budget is {memory} bytes of memory, and this machine has {installed}"
        )
    return Ledger.create(memory, disk)


def _make_memory(ledger: Ledger, request: CacheRequest, path: str | None) -> DatasetMemory:
    folder = None if path is None else Path(path)
    return DatasetMemory.create(
        ledger, request.files, request.tiers, folder, request.fingerprint, request.samples
    )


def readable(name: str) -> str:
    """Returns a name without control and other unprintable characters."""
    return "".join(char if char.isprintable() else "?" for char in name)


def _pids(dataset: HeldDataset) -> str:
    pids = sorted({user.pid for user in dataset.users})
    return f"pid {', '.join(map(str, pids))}"


def _describe(held: HeldLedger) -> Fields:
    memory, disk = held.ledger.memory, held.ledger.disk
    return {
        "served": held.served,
        "path": None if held.path is None else readable(held.path),
        "memory": {"limit": memory.limit, "used": memory.used},
        "disk": {"limit": disk.limit, "used": disk.used},
        "datasets": [
            {
                "name": readable(dataset.name),
                "fingerprint": dataset.fingerprint,
                "files": dataset.files,
                "users": sorted({user.pid for user in dataset.users}),
                "tiers": {
                    tier: {"images": usage.images, "bytes": usage.nbytes}
                    for tier, usage in dataset.memory.usage().items()
                },
            }
            for dataset in held.datasets
        ],
    }
