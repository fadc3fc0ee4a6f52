"""Slots of a few sizes, for requests of any size: descriptors with images, and rows.

Slot numbers are limited and a slot never changes its size, so sizes are rounded up to a few.
"""

from __future__ import annotations

import mmap
from typing import Literal

from fusionloader import _native
from fusionloader.system.shm.slots import Arena, Owner, PageLocking, Slot, SlotPool

_SPARE_BYTES = 64 << 20  # stay allocated for free slots of one size, while there is work
_FEWEST_SPARE = 4

Steps = Literal[1, 4]
"""Number of slot sizes between two powers of two."""


def size_of_slot(nbytes: int, steps: Steps) -> int:
    """Returns the smallest slot size of at least ``nbytes``."""
    power = 1 << max(nbytes - 1, 0).bit_length()
    if power <= mmap.PAGESIZE:
        return mmap.PAGESIZE
    step = max(power // 2 // steps, mmap.PAGESIZE)
    return -(-nbytes // step) * step


class SizedSlots:
    """Slots of an arena; a free one is used again for requests of its size."""

    def __init__(
        self,
        arena: Arena,
        queue: _native.ManagerQueue,
        steps: Steps,
        page_locking: PageLocking | None = None,
    ) -> None:
        self._arena, self._queue, self._steps = arena, queue, steps
        self._page_locking = page_locking
        self._pools: dict[int, SlotPool] = {}

    def acquire(self, nbytes: int) -> Slot:
        """Returns a slot of at least ``nbytes``.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        size = size_of_slot(nbytes, self._steps)
        pool = self._pools.get(size)
        if pool is None:
            spare = max(_SPARE_BYTES // size, _FEWEST_SPARE)
            pool = SlotPool(self._arena, self._queue, spare, self._page_locking)
            self._pools[size] = pool
        return pool.acquire(size)

    def release(self, slot: Slot) -> None:
        self._pools[slot.nbytes].release(slot)

    def lease(self, slot: Slot) -> Owner:
        """Returns an owner of the slot's buffer; deleting the owner frees the slot."""
        owner = SlotPool.view(slot)
        self._pools[slot.nbytes].lease(owner)
        return owner

    def trim(self) -> None:
        """Returns the memory of free slots to the system; page-locked memory stays."""
        for pool in self._pools.values():
            pool.trim()

    @property
    def resident_bytes(self) -> int:
        """Bytes of allocated slots."""
        return sum(pool.resident_bytes for pool in self._pools.values())
