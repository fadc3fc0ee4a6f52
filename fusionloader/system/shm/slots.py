"""Slots: reused parts of one shared-memory object, for descriptors and batches."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Protocol

from fusionloader import _native
from fusionloader.system.finalizers import Finalizer
from fusionloader.system.shm import forks, objects
from fusionloader.system.shm.descriptor import OwnedDescriptor
from fusionloader.system.shm.forks import Fork

_PAGE = mmap.PAGESIZE
_HUGE_PAGE = 2 << 20

Owner = ctypes.Array[ctypes.c_char]
"""A delivered slot's bytes. The slot is in use as long as there is a reference to them."""


class Slot:
    """A slot of shared memory. It is unmapped with the last reference to it or to a lease.

    Attributes:
        number: number of the slot, the same in all processes.
        offset: offset in the arena.
        nbytes: size in bytes.
        region: region that the slot is part of.
        map: the bytes.
        address: address in this process.
        resident: whether its memory is allocated.
        lease: the current or last lease.
        forks: forks whose children may look at the slot.
    """

    __slots__ = (
        *("__weakref__", "address", "forks", "lease", "map"),
        *("nbytes", "number", "offset", "region", "resident"),
    )

    def __init__(self, number: int, begin: int, nbytes: int, region: SlotRegion) -> None:
        """``begin`` is the offset in the region."""
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
    """Weak reference to a delivered slot's bytes, which also knows the slot.

    Its callback is ``append`` of a list of its pool, which runs no Python code: the last reference
    may go within any statement of any thread, and while the interpreter ends.

    Attributes:
        slot: number of the slot.
    """

    __slots__ = ("slot",)
    slot: int


class SlotRegion:
    """Adjacent slots, which are mapped, and page-locked if at all, together."""

    __slots__ = ("__weakref__", "address", "map", "offset")

    def __init__(self, fd: int, offset: int, nbytes: int) -> None:
        self.offset = offset
        # Not mmap.mmap, which keeps a file descriptor open per mapping.
        self.map = _native.SharedMapping(fd, offset, nbytes)
        self.address = self.map.address


class Arena(OwnedDescriptor):
    """The shared-memory object that slots are cut from. It never shrinks.

    Delivered batches keep their memory mapped after it is closed.

    Attributes:
        fd: its file descriptor, for workers to map.
    """

    def __init__(self) -> None:
        self.fd = objects.create(_PAGE, "slots", grows=True)
        self._end = 0
        self._count = 0

    def cut(self, nbytes: int, queue: _native.ManagerQueue, count: int = 1) -> list[Slot]:
        """Returns ``count`` new adjacent slots, registered in ``queue``.

        With ``count > 1`` their pages are populated at once, as huge pages if possible.

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
        """Returns the slot's memory to the system. Its offsets are not reused."""
        slot.resident = not objects.discard(self.fd, slot.offset, slot.nbytes)

    def restore(self, slot: Slot) -> None:
        objects.reserve(self.fd, slot.offset, slot.nbytes)
        slot.resident = True


class Mark(Protocol):
    """An event in the work of a device."""

    def query(self) -> bool:
        """Whether the device has passed it."""


class PageLocking(Protocol):
    """Page-locking by the driver of a device, for memory that is copied from."""

    def lock(self, address: int, nbytes: int) -> None:
        """Page-locks memory; called once for a region of slots."""

    def unlock(self, address: int) -> None:
        """Undoes ``lock``; called in the same process before the region is unmapped."""

    def mark(self) -> Mark:
        """Returns an event after all copies enqueued so far."""


class SlotPool:
    """A pool of slots. Free slots are reused last in, first out, while their pages are in caches.

    A delivered slot comes back when nothing refers to its memory. The pool grows while the user
    keeps batches, and returns memory to the system when more than ``spare`` slots are free.

    Attributes:
        first: number of slots that the next cut makes at once, if they are page-locked.
        count: number of slots, free or not.
        resident_bytes: allocated bytes.
        peak_bytes: highest value of ``resident_bytes``.
    """

    def __init__(
        self,
        arena: Arena,
        queue: _native.ManagerQueue,
        spare: int,
        page_locking: PageLocking | None = None,
    ) -> None:
        """With ``page_locking``, slots are page-locked until they are unmapped.

        The first ``first`` slots are locked by one call, because a call takes long.
        """
        self._arena = arena
        self._queue = queue
        self._spare = spare
        self._page_locking = page_locking
        self._free: list[Slot] = []
        self._leased: dict[int, Slot] = {}  # by number
        self._ended: list[SlotLease] = []  # leases whose bytes were dropped
        self._seen: list[Slot] = []  # dropped here, but forked children may look at them
        self._returned: list[Slot] = []  # free, unless copies still read them
        self._ending: list[tuple[Mark, list[Slot]]] = []  # free after the device has passed a mark
        self.first = 1
        self.count = 0
        self.resident_bytes = 0
        self.peak_bytes = 0
        forks.watch(self)

    def held(self) -> list[Slot]:
        leased = list(self._leased.values())
        return [slot for slot in leased if slot.lease is not None and slot.lease() is not None]

    def acquire(self, nbytes: int) -> Slot:
        """Returns a slot of at least ``nbytes``.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        slot = self.recycle(nbytes)
        return self._fresh(nbytes) if slot is None else slot

    def recycle(self, nbytes: int) -> Slot | None:
        """Returns a free slot of at least ``nbytes``; ``None`` if there is none.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        self._collect()
        return self._recycled(nbytes)

    def _fresh(self, nbytes: int) -> Slot:
        locking = self._page_locking
        count, self.first = (1 if locking is None else self.first), 1
        slots = self._arena.cut(nbytes, self._queue, count)
        self.count += count
        self._count_resident(sum(slot.nbytes for slot in slots))
        if locking is not None:
            region = slots[0].region
            # A finalizer of the region, not of its mapping, where it would run after the unmapping.
            # Made first: no exception leaves memory that is locked and never unlocked.
            _call_before_unmapping(region, locking.unlock)
            locking.lock(region.address, sum(slot.nbytes for slot in slots))
        self._free += slots[1:]
        return slots[0]

    def release(self, slot: Slot) -> None:
        self._returned.append(slot)

    @staticmethod
    def view(slot: Slot) -> Owner:
        """Returns the slot's bytes."""
        owner = (ctypes.c_char * slot.nbytes).from_buffer(slot.map)
        owner.slot = slot  # type: ignore[attr-defined]  # keeps it mapped and page-locked
        return owner

    def lease(self, owner: Owner) -> None:
        """Has a slot freed after the last reference to its bytes, ``owner``.

        The caller keeps ``owner`` before: an exception just behind this call frees nothing then,
        and the call may be made again.
        """
        slot: Slot = owner.slot  # type: ignore[attr-defined]
        if slot.lease is not None and slot.lease() is owner:
            return
        self._leased[slot.number] = slot
        lease = SlotLease(owner, self._ended.append)
        lease.slot = slot.number
        slot.lease = lease  # last: an exception before this leaves the slot in use

    def trim(self) -> None:
        """Returns the memory of all free slots to the system, unless it is page-locked."""
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
        """Frees slots that nothing refers to.

        An exception may come at any call. So no call is made while a slot moves from one list to
        another: a slot in two lists would be given to two mini-batches.
        """
        while self._ended:
            number = self._ended[0].slot
            self._seen += [self._leased[number]]
            del self._leased[number], self._ended[0]
        # Asked once, because another thread may fork meanwhile.
        waiting = {slot for slot in self._seen if forks.is_seen(slot)}
        unseen = [slot for slot in self._seen if slot not in waiting]
        seen = [slot for slot in self._seen if slot in waiting]
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
        """Returns the memory of at most ``most`` free slots to the system."""
        resident = [slot for slot in self._free if slot.resident]
        for slot in resident[: max(0, most)]:
            self._arena.discard(slot)
            if not slot.resident:
                self._count_resident(-slot.nbytes)

    def _collect_locked(self, page_locking: PageLocking) -> None:
        """Frees slots once no copy to the device reads them."""
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
        if os.getpid() == owner:  # a forked child must not unlock the parent's memory
            unregister(address)

    # Not at exit, when the driver must not be called, and releases everything itself.
    Finalizer(region, end, region.address)
