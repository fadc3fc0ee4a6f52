"""The encoded bytes that this machine keeps of a dataset's files, as a server gives them away."""

from __future__ import annotations

from fusionloader.cache.servers.requests import Stamp
from fusionloader.cache.tiers.store_handles import StoreHandles

_TIERS = ("encoded", "disk_encoded")  # in the order in which they are filled


class StoreShelf:
    """The encoded tiers of a dataset's stores, in memory and on a disk; see ``server.Shelf``."""

    def __init__(self, handles: StoreHandles) -> None:
        """Maps the stores."""
        self._opened = handles.open()
        views = self._opened.views
        self._stores = [(tier, views[tier]) for tier in _TIERS if tier in views]

    def get(self, item: int, stamp: Stamp) -> memoryview | None:
        """Returns the bytes of a file, from memory without a copy, if they have this stamp.

        They are valid as long as the shelf is referred to.
        """
        for tier, store in self._stores:
            found = store.find(item, *stamp)
            if found is not None:
                return found.view if tier == "encoded" else memoryview(found.data)
        return None

    def put(self, item: int, stamp: Stamp, data: memoryview) -> bool:
        """Keeps the bytes of a file; ``False`` if there is no room, or they are here already."""
        if not self.lacks(item, data.nbytes):
            return False
        return any(store.put(item, *stamp, 0, 0, data) for _, store in self._stores)

    def lacks(self, item: int, nbytes: int) -> bool:
        """Whether nothing is here of a file, and there is room for so many bytes."""
        if any(store.holds(item) for _, store in self._stores):
            return False
        return any(store.lacks(item, nbytes) for _, store in self._stores)
