"""The samples of a table in the order of their bytes, as the planning of requests wants them."""

from __future__ import annotations

import numpy as np

from fusionloader.cache.tiers.dataset_table import DatasetTable

_OFFSET_BITS = 44
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


class TablePlaces:
    """See ``scheduler.read_ahead.Places``.

    A table in the order of its files costs nothing; another one 8 bytes a sample.
    """

    def __init__(self, table: DatasetTable) -> None:
        assert table.ranges is not None
        self._ranges, self._sizes = table.ranges.data, table.sizes.data
        self._places: memoryview | None = None
        self._items: memoryview | None = None
        if len(table) > 1 and not bool((table.ranges[1:] >= table.ranges[:-1]).all()):
            order = np.argsort(table.ranges, kind="stable").astype(np.uint32)
            places = np.empty(len(order), np.uint32)
            places[order] = np.arange(len(order), dtype=np.uint32)
            self._items, self._places = order.data, places.data

    def place(self, item: int) -> int:
        """Returns a sample's place."""
        return item if self._places is None else int(self._places[item])

    def item(self, place: int) -> int:
        """Undoes ``place``."""
        return place if self._items is None else int(self._items[place])

    def range(self, place: int) -> tuple[int, int, int]:
        """Returns file, first byte and the byte behind the last of the sample at a place."""
        item = self.item(place)
        packed = self._ranges[item]
        start = packed & _OFFSET_MASK
        return packed >> _OFFSET_BITS, start, start + self._sizes[item]

    def __len__(self) -> int:
        return len(self._ranges)
