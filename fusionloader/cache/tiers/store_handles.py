"""Handles of a dataset's stores, for other processes. Native workers import this module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusionloader import _native

STORES = ("index", "encoded", "decoded", "disk_encoded", "disk_decoded")
ALWAYS = ("ledger", "control_page")
JPEG_INDEX = "jpeg_index"  # store of one loader, which is charged to no cache
DESCRIPTORS = (*ALWAYS, *STORES, JPEG_INDEX)


@dataclass(frozen=True, slots=True)
class StoreHandles:
    """Descriptors and sizes of a dataset's stores, of which any may be missing.

    Attributes:
        fds: descriptors by name, one of ``DESCRIPTORS``.
        mapped: bytes to map of each store, by name.
    """

    fds: Mapping[str, int]
    mapped: Mapping[str, int]

    def descriptors(self) -> dict[str, int]:
        """Returns the descriptors by argument name, such as ``encoded_fd``."""
        return {f"{name}_fd": fd for name, fd in self.fds.items()}

    def at(self, fds: Mapping[str, int]) -> StoreHandles:
        """Returns the handles with other descriptors, by argument name; some may be missing."""
        moved = {name: fds[f"{name}_fd"] for name in DESCRIPTORS if f"{name}_fd" in fds}
        return StoreHandles(moved, self.mapped)

    def open(self) -> OpenHandles:
        return OpenHandles(self)

    def __reduce__(self) -> tuple[Any, ...]:
        from fusionloader.system.shm.descriptor import Descriptor

        fds = {name: Descriptor(fd) for name, fd in self.fds.items()}
        return _received, (fds, dict(self.mapped))


def _received(fds: Mapping[str, Any], mapped: Mapping[str, int]) -> StoreHandles:
    return StoreHandles({name: each.fd for name, each in fds.items()}, mapped)


class OpenHandles:
    """Stores that this process has mapped.

    Attributes:
        views: stores by name.
        native: all stores, for a worker's native loop.
    """

    def __init__(self, handles: StoreHandles) -> None:
        fds = handles.fds
        self._ledger = _native.LedgerView(fds["ledger"]) if "ledger" in fds else None
        self.views = {
            name: _native.FileStoreView(fds[name], handles.mapped[name], self._ledger)
            for name in STORES
            if name in fds
        }
        if JPEG_INDEX in fds:
            index = _native.FileStoreView(fds[JPEG_INDEX], handles.mapped[JPEG_INDEX])
            self.views["index"] = index
        self.native = _native.OpenedStores(**self.views, control_fd=fds.get("control_page", -1))
