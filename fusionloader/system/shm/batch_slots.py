"""Shared memory for whole batches, used again and again by the worker that makes them.

The training process makes one object for each worker before that starts, so that no descriptor is
sent with a batch. The worker takes slots from the object as it needs them. A slot begins with a
word that says whether a batch lies in it: the worker sets it when it has written one, the training
process clears it when the last reference to that batch is gone. Each side writes it only while the
other waits for it, so that no lock is needed.

A batch may go in the middle of any statement of any thread, and while the interpreter ends. So no
Python code runs then: the slot is noted, and freed when the next batch is asked for.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Callable, Iterable

from fusionloader import _native
from fusionloader.system.shm import forks, objects
from fusionloader.system.shm.forks import Fork

Owner = ctypes.Array[ctypes.c_char]
"""A batch's bytes: its slot is in use for as long as something refers to it."""

_HEADER = 64  # bytes before the batch, of which the first is the word
_GRAIN = 1 << 16  # sizes are multiples of it, so that alike batches find the same slots
_FREE, _IN_USE = 0, 1


class _Lease(weakref.ref[Owner]):
    """Tells when the last reference to a delivered batch's bytes is gone."""

    __slots__ = ("slot",)
    slot: _Mapped


class _Mapped:
    """A slot, mapped in this process; ``nbytes`` are for a batch.

    Attributes:
        is_leased: whether the training process has a batch of it, not known to be dropped. It does
            not ask ``_held``: the garbage collector clears a weak reference that is garbage itself,
            before ``WorkersSlots.__del__`` can ask whether the batch is still there.
    """

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self.offset, self.size, self.nbytes = offset, size, size - _HEADER
        self._map = _native.SharedMapping(fd, offset, size)
        self._word = ctypes.c_uint32.from_buffer(self._map)
        self._held: weakref.ref[Owner] | None = None
        self.forks: list[Fork] = []
        self.is_leased = False

    def is_held(self) -> bool:
        """Whether something of this process looks into it."""
        return self._held is not None and self._held() is not None

    def is_free(self) -> bool:
        """Whether no batch lies in it, and nothing here looks into it either."""
        return self._word.value == _FREE and not self.is_held()

    def set_free(self, free: bool) -> None:
        self._word.value = _FREE if free else _IN_USE

    def bytes(self, dropped: Callable[[_Lease], None] | None = None) -> Owner:
        """Returns the batch's bytes; ``dropped`` is called when nothing refers to them."""
        owner = (ctypes.c_char * self.nbytes).from_buffer(self._map, _HEADER)
        held = _Lease(owner, dropped)
        held.slot = self
        self._held = held
        return owner


class BatchSlots:
    """The slots of one worker process."""

    def __init__(self, fd: int, most: int) -> None:
        """There are at most ``most``: those of batches in flight, and some that are looked at.

        ``fd`` is the object that they are parts of.
        """
        self._fd, self._most = fd, most
        self._end = 0
        self._slots: list[_Mapped] = []

    def acquire(self, nbytes: int) -> _Mapped | None:
        """Returns a free slot for so many bytes; ``None`` where there is none."""
        fitting = [slot for slot in self._slots if slot.nbytes >= nbytes and slot.is_free()]
        if fitting:
            return min(fitting, key=lambda slot: slot.size)
        if len(self._slots) >= self._most:
            smaller = next((slot for slot in self._slots if slot.is_free()), None)
            if smaller is None:
                return None
            self._slots.remove(smaller)
            objects.discard(self._fd, smaller.offset, smaller.size)
        return self._made(-(-(_HEADER + nbytes) // _GRAIN) * _GRAIN)

    def _made(self, size: int) -> _Mapped | None:
        try:
            objects.reserve(self._fd, self._end, size)
            slot = _Mapped(self._fd, self._end, size)
        except (objects.SharedMemoryExhausted, OSError):
            objects.discard(self._fd, self._end, size)
            return None
        self._end += size
        self._slots.append(slot)
        return slot

    @property
    def offsets(self) -> list[int]:
        """Slots that there are; others have been replaced by larger ones."""
        return [slot.offset for slot in self._slots]


def memory_of(fd: int) -> int:
    """Returns what an object of shared memory is told by, in every process."""
    return os.fstat(fd).st_ino


class WorkersSlots:
    """The slots of a loader's workers, in the training process.

    Attributes:
        peak_bytes: of memory that they took at most, as far as batches have arrived.
    """

    def __init__(self) -> None:
        self._here = os.getpid()
        self._fds: dict[int, int] = {}  # of the workers' objects, by memory_of()
        self._mapped: dict[tuple[int, int], _Mapped] = {}
        self._ended: list[_Lease] = []  # of batches that were dropped
        self._seen: list[_Mapped] = []  # by forked children, where they were dropped here
        self.peak_bytes = 0
        forks.watch(self)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._mapped)

    def held(self) -> list[_Mapped]:
        """Returns the slots of batches that were delivered, and not known to be dropped."""
        return [slot for slot in list(self._mapped.values()) if slot.is_leased]

    def add_worker(self) -> int:
        """Makes the object of one more worker; returns its descriptor.

        Raises:
            OSError: there are too many open files.
        """
        fd = objects.create(0, "batch", grows=True)
        self._fds[memory_of(fd)] = fd
        return fd

    def lease(self, memory: int, offset: int, size: int, offsets: Iterable[int]) -> Owner:
        """Returns a batch's bytes.

        Args:
            memory: of the worker's object.
            offset: of the slot in the worker's object.
            size: of the slot.
            offsets: of the slots that the worker has.

        Raises:
            OSError: it cannot be mapped.
        """
        self._collect()
        slot = self._mapped.get((memory, offset))
        if slot is None:
            slot = _Mapped(self._fds[memory], offset, size)
            self._forget_replaced(memory, set(offsets))
            self._mapped[memory, offset] = slot
            used = sum(os.fstat(fd).st_blocks * 512 for fd in self._fds.values())
            self.peak_bytes = max(self.peak_bytes, used)
        slot.is_leased = True
        return slot.bytes(self._ended.append)

    def _forget_replaced(self, memory: int, offsets: set[int]) -> None:
        """Unmaps slots that a worker has replaced.

        ``offsets`` may be older than what was leased before, because batches are not taken in the
        order in which they were sent. So slots that are looked at stay, whatever it says.
        """
        for key, slot in list(self._mapped.items()):
            replaced = key[0] == memory and key[1] not in offsets
            if replaced and not slot.is_leased and slot not in self._seen:
                del self._mapped[key]

    def _collect(self) -> None:
        """Frees the slots of batches that were dropped.

        Nothing is called while a slot goes from one list to the other: after an exception it would
        be in both, and freed when another batch lies in it.
        """
        if os.getpid() != self._here:  # a forked child's copy of a batch is not the batch
            return
        while self._ended:
            slot = self._ended[0].slot
            self._seen += [slot]
            slot.is_leased = False
            del self._ended[0]
        unseen = [slot for slot in self._seen if not forks.is_seen(slot)]
        self._seen[:] = [slot for slot in self._seen if slot.forks]
        for dropped in unseen:  # they are listed no more: after an exception none is freed twice
            dropped.set_free(True)

    def free(self, memory: int, offset: int) -> None:
        """Frees a slot whose batch is not wanted."""
        os.pwrite(self._fds[memory], bytes(4), offset)  # the word

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # modules are cleared by now, and the process's memory goes with it
            return
        self._collect()
        for memory, fd in self._fds.items():
            if os.getpid() == self._here:  # a forked child's parent goes on
                self._discard_unused(memory, fd)
            os.close(fd)

    def _discard_unused(self, memory: int, fd: int) -> None:
        """Returns all memory to the system but that of batches which are still there."""
        held = [
            each
            for key, each in self._mapped.items()
            if key[0] == memory and (each.is_leased or forks.is_seen(each))
        ]
        begin, end = 0, os.fstat(fd).st_size
        for slot in sorted(held, key=lambda slot: slot.offset):
            objects.discard(fd, begin, slot.offset - begin)
            begin = slot.offset + slot.size
        objects.discard(fd, begin, end - begin)
