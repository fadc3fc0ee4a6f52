"""Slots: recycled parts of one shared-memory object, for descriptors and for batches."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Protocol

from fusionloader import _native
from fusionloader.system.shm import forks, objects
from fusionloader.system.shm.descriptor import OwnedDescriptor
from fusionloader.system.shm.forks import Fork

_PAGE = mmap.PAGESIZE
_HUGE_PAGE = 2 << 20

Owner = ctypes.Array[ctypes.c_char]
"""A delivered slot's bytes: the slot is in use for as long as something refers to it."""


class Slot:
    """``nbytes`` of shared memory, mapped at ``address``; its ``number`` is the same everywhere.

    It is unmapped with the last reference to the slot or a lease of it.
    """

    __slots__ = (
        *("__weakref__", "address", "forks", "lease", "map"),
        *("nbytes", "number", "offset", "region", "resident"),
    )

    def __init__(self, number: int, begin: int, nbytes: int, region: SlotRegion) -> None:
        """``begin`` counts from the region's."""
        self.number = number
        self.offset = region.offset + begin
        self.nbytes = nbytes
        self.region = region
        self.map = memoryview(region.map)[begin : begin + nbytes]
        self.address = region.address + begin
        self.resident = True
        self.lease: SlotLease | None = None
        self.forks: list[Fork] = []


class SlotLease(weakref.ref[Owner]):
    """Tells when the last reference to a delivered slot's bytes is gone.

    Its callback is ``list.append`` of its pool, which runs no Python code: the owner may go in the
    middle of any statement of any thread, and while the interpreter ends.

    Attributes:
        slot: number of the slot.
    """

    __slots__ = ("slot",)
    slot: int


class SlotRegion:
    """Neighbouring slots, mapped together; page-locked together where they are."""

    __slots__ = ("__weakref__", "address", "map", "offset")

    def __init__(self, fd: int, offset: int, nbytes: int) -> None:
        self.offset = offset
        # Not mmap.mmap, which keeps a file descriptor open per mapping.
        self.map = _native.SharedMapping(fd, offset, nbytes)
        self.address = self.map.address


class Arena(OwnedDescriptor):
    """The shared-memory object that slots are cut from; it only ever grows.

    Delivered batches keep their memory mapped when it is closed.

    Attributes:
        fd: its file descriptor, for workers to map.
    """

    def __init__(self) -> None:
        self.fd = objects.create(_PAGE, "slots", grows=True)
        self._end = 0
        self._count = 0

    def cut(self, nbytes: int, queue: _native.ManagerQueue, count: int = 1) -> list[Slot]:
        """Returns fresh slots, neighbours; of many all is there, in huge pages if there are such.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        size = -(-nbytes // _PAGE) * _PAGE
        if count > 1:
            objects.check_room(size * count, f"{count} batches")
            self._end = -(-self._end // _HUGE_PAGE) * _HUGE_PAGE
            os.ftruncate(self.fd, self._end + size * count)
            region = SlotRegion(self.fd, self._end, size * count)
            region.map.populate()
            objects.allocate(self.fd, self._end, size * count)
        else:
            objects.reserve(self.fd, self._end, size)
            region = SlotRegion(self.fd, self._end, size)
        slots = [Slot(self._count + n, n * size, size, region) for n in range(count)]
        for slot in slots:
            queue.add_slot(slot.number, slot.offset, size)
        self._end += size * count
        self._count += count
        return slots

    def discard(self, slot: Slot) -> None:
        """Returns the slot's memory to the system; its offsets stay reserved."""
        slot.resident = not objects.discard(self.fd, slot.offset, slot.nbytes)

    def restore(self, slot: Slot) -> None:
        """Undoes ``discard``."""
        objects.reserve(self.fd, slot.offset, slot.nbytes)
        slot.resident = True


class Mark(Protocol):
    """A point in the work of a device."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def synchronize(self) -> None:
        """Waits until the device has."""


class PageLocking(Protocol):
    """Page-locking by the driver of a device, for memory that is copied from."""

    def lock(self, address: int, nbytes: int) -> None:
        """Page-locks memory; called once for neighbouring slots."""

    def unlock(self, address: int) -> None:
        """Called in the same process before they are unmapped."""

    def mark(self) -> Mark:
        """Returns the point behind all copies that were enqueued."""


class SlotPool:
    """Free slots, last in first out, so that pages in cache are used first.

    A delivered slot is returned when nothing references its memory. The pool grows when the user
    keeps batches. Memory is returned to the system when more than ``spare`` slots are free.
    """

    def __init__(
        self,
        arena: Arena,
        queue: _native.ManagerQueue,
        spare: int,
        page_locking: PageLocking | None = None,
    ) -> None:
        """With ``page_locking`` slots are locked until they are unmapped.

        The first ones are locked together, as many as ``first`` says by then: a call takes long.
        """
        self._arena = arena
        self._queue = queue
        self._spare = spare
        self._page_locking = page_locking
        self._free: list[Slot] = []
        self._leased: dict[int, Slot] = {}  # by number
        self._ended: list[SlotLease] = []  # leases
        self._seen: list[Slot] = []  # dropped here; forked children may look at them
        self._returned: list[Slot] = []
        self._ending: list[tuple[Mark, list[Slot]]] = []
        self.first = 1
        self.count = 0  # slots, free or not
        self.resident_bytes = 0
        self.peak_bytes = 0
        forks.watch(self)

    def held(self) -> list[Slot]:
        """Returns the slots that were delivered and not dropped."""
        return list(self._leased.values())

    def acquire(self, nbytes: int) -> Slot:
        """Returns a slot of at least ``nbytes``.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        self._collect()
        slot = self._recycled(nbytes)
        return self._fresh(nbytes) if slot is None else slot

    def _fresh(self, nbytes: int) -> Slot:
        locking = self._page_locking
        count, self.first = (1 if locking is None else self.first), 1
        slots = self._arena.cut(nbytes, self._queue, count)
        self.count += count
        self._count_resident(sum(slot.nbytes for slot in slots))
        if locking is not None:
            region = slots[0].region
            locking.lock(region.address, sum(slot.nbytes for slot in slots))
            # On the region, which leases keep alive: the mapping is finalized too late.
            _call_before_unmapping(region, locking.unlock)
        self._free += slots[1:]
        return slots[0]

    def release(self, slot: Slot) -> None:
        """Takes back a slot that was not delivered."""
        self._returned.append(slot)

    def lease(self, slot: Slot) -> Owner:
        """Returns an object with the slot's buffer; the slot comes back when it is gone."""
        owner = (ctypes.c_char * slot.nbytes).from_buffer(slot.map)
        # The slot stays mapped, and page-locked, for as long.
        owner.slot = slot  # type: ignore[attr-defined]
        self._leased[slot.number] = slot
        lease = SlotLease(owner, self._ended.append)
        lease.slot = slot.number
        slot.lease = lease  # not before: an exception until here leaves the slot in use
        return owner

    def trim(self) -> None:
        """Returns the memory of all free slots to the system; page-locked memory stays."""
        self._collect()
        if self._page_locking is None:
            self._discard(len(self._free))

    def _recycled(self, nbytes: int) -> Slot | None:
        for position in range(len(self._free) - 1, -1, -1):
            slot = self._free[position]
            if slot.nbytes >= nbytes:
                if not slot.resident:
                    self._arena.restore(slot)
                    self._count_resident(slot.nbytes)
                del self._free[position]
                return slot
        return None

    def _collect(self) -> None:
        """Frees slots that nothing refers to any more.

        An exception may come at any call. So nothing is called while a slot goes from one list to
        another: one that is in two of them would be given to two mini-batches.
        """
        while self._ended:
            number = self._ended[0].slot
            self._seen += [self._leased[number]]
            del self._leased[number], self._ended[0]
        unseen = [slot for slot in self._seen if not forks.is_seen(slot)]
        seen = [slot for slot in self._seen if slot.forks]
        self._seen, self._returned = seen, [*self._returned, *unseen]
        if self._page_locking is not None:
            self._collect_locked(self._page_locking)
            return  # page-locked memory stays
        self._free, self._returned = [*self._free, *self._returned], []
        if len(self._free) <= self._spare:
            return
        resident = sum(slot.resident for slot in self._free)
        self._discard(resident - self._spare)

    def _discard(self, most: int) -> None:
        """Returns the memory of free slots to the system, at most of so many."""
        resident = [slot for slot in self._free if slot.resident]
        for slot in resident[: max(0, most)]:
            self._arena.discard(slot)
            if not slot.resident:
                self._count_resident(-slot.nbytes)

    def _collect_locked(self, page_locking: PageLocking) -> None:
        """Frees slots once copies to the device no longer read what the caller has dropped."""
        if self._returned:
            mark = page_locking.mark()
            self._ending, self._returned = [*self._ending, (mark, self._returned)], []
        while self._ending and self._ending[0][0].query():
            self._free += self._ending[0][1]
            del self._ending[0]

    def _count_resident(self, nbytes: int) -> None:
        self.resident_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)


def _call_before_unmapping(region: SlotRegion, unregister: Callable[[int], None]) -> None:
    owner = os.getpid()

    def end(address: int) -> None:
        if os.getpid() == owner:  # a forked child must not unlock its parent's memory
            unregister(address)

    # Not at exit: the driver must not be called then, and releases everything itself.
    weakref.finalize(region, end, region.address).atexit = False
