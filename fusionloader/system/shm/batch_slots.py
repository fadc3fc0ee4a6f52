"""Shared memory for whole batches, which the worker that makes them reuses.

The training process makes one memory object for each worker before the worker starts, so no
descriptor is sent with a batch. The worker cuts slots from the object as it needs them. A slot
begins with a word that says whether a batch is in it: the worker sets the word after it has written
a batch, and the training process clears it after the last reference to the batch is gone. If forked
children may still look at the batch, it marks the slot as left instead: the worker gives it up and
cuts another one, and the training process frees the memory when the children have ended. Each side
writes the word only in the state that the other one leaves alone, so no lock is needed.

The last reference to a batch may go within any statement of any thread, and while the interpreter
ends. So no Python code runs then: the slot is put on a list, and freed at the next batch.
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
"""A batch's bytes. The slot is in use as long as there is a reference to them."""

_HEADER = 64  # bytes before the batch, which begin with the word
_GRAIN = 1 << 16  # slot sizes are multiples of it, so that batches of similar size share slots
_FREE, _IN_USE, _LEFT, _GIVEN_UP = range(4)


class _Lease(weakref.ref[Owner]):
    """Weak reference to a delivered batch's bytes, which also knows their slot."""

    __slots__ = ("key",)
    key: tuple[int, int]  # not the slot itself: a cycle would keep it mapped


class _Mapped:
    """A slot, mapped in this process.

    Attributes:
        offset: offset of the slot in its object.
        key: number of the object in the training process, and offset.
        size: size of the slot in bytes.
        nbytes: bytes for a batch.
        forks: forks whose children may look at the batch.
        is_leased: whether the training process has delivered a batch in it that is not known to
            be dropped. ``_held`` cannot tell: the garbage collector clears a weak reference that is
            garbage itself, before ``WorkersSlots.__del__`` can look at it.
    """

    def __init__(self, fd: int, offset: int, size: int, memory: int = 0) -> None:
        self.offset, self.size, self.nbytes = offset, size, size - _HEADER
        self.key = memory, offset
        self._map = _native.SharedMapping(fd, offset, size)
        self._word = ctypes.c_uint32.from_buffer(self._map)
        self._held: weakref.ref[Owner] | None = None
        self.forks: list[Fork] = []
        self.is_leased = False

    def is_held(self) -> bool:
        """Whether this process has a reference to its bytes."""
        return self._held is not None and self._held() is not None

    def is_free(self) -> bool:
        """Whether it contains no batch, and this process has no reference to its bytes."""
        return self._word.value == _FREE and not self.is_held()

    def set_free(self, free: bool) -> None:
        self._word.value = _FREE if free else _IN_USE

    def leave(self) -> None:
        """Has the worker give this slot up, in which a batch is."""
        if self._word.value == _IN_USE:
            self._word.value = _LEFT

    def give_up(self) -> bool:
        """Returns whether the worker, which calls this, has to use the slot no more."""
        if self._word.value != _LEFT or self.is_held():
            return False
        self._word.value = _GIVEN_UP
        return True

    def is_left(self) -> bool:
        return self._word.value in (_LEFT, _GIVEN_UP)

    def is_given_up(self) -> bool:
        return self._word.value == _GIVEN_UP

    def view(self) -> Owner:
        """Returns the batch's bytes."""
        owner = (ctypes.c_char * self.nbytes).from_buffer(self._map, _HEADER)
        owner.slot = self  # type: ignore[attr-defined]
        return owner

    def hold(self, owner: Owner, dropped: Callable[[_Lease], None] | None = None) -> None:
        """Is held by ``owner``; ``dropped`` is called after the last reference to it is gone."""
        if self._held is not None and self._held() is owner:
            return
        held = _Lease(owner, dropped)
        held.key = self.key
        self._held = held


class BatchSlots:
    """The slots of one worker process."""

    def __init__(self, fd: int, most: int) -> None:
        """Cuts at most ``most`` slots from the object ``fd``, behind those of earlier workers.

        ``most`` covers the batches in flight, and some that the user keeps.
        """
        self._fd, self._most = fd, most
        self._end = os.fstat(fd).st_size
        self._slots: list[_Mapped] = []

    def acquire(self, nbytes: int) -> _Mapped | None:
        """Returns a free slot for ``nbytes``; ``None`` if there is none."""
        self._slots = [slot for slot in self._slots if not slot.give_up()]
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

    def count_held(self) -> int:
        """Returns the number of slots that values of this process lie in."""
        return sum(slot.is_held() for slot in self._slots)

    @property
    def offsets(self) -> list[int]:
        """Offsets of the current slots, without those that larger ones have replaced."""
        return [slot.offset for slot in self._slots]


def identify_object(fd: int) -> int:
    """Returns the number of a shared-memory object, the same in every process."""
    return os.fstat(fd).st_ino


class WorkersSlots:
    """The slots of a loader's workers, in the training process.

    Attributes:
        peak_bytes: most memory of the slots so far, measured when batches arrive.
    """

    def __init__(self) -> None:
        self._here = os.getpid()
        self._fds: dict[int, int] = {}  # workers' objects, by identify_object()
        self._objects: dict[int, int] = {}  # by workers' numbers
        self._begins: dict[int, int] = {}  # by object, where the current worker's slots begin
        self._mapped: dict[tuple[int, int], _Mapped] = {}  # by object and offset
        self._ended: list[_Lease] = []  # batches that were dropped
        self._seen: list[_Mapped] = []  # dropped here, but forked children may look at them
        self._left: list[_Mapped] = []  # seen no more, and not given up when last looked at
        self.peak_bytes = 0
        forks.watch(self)

    @property
    def count(self) -> int:
        """Number of slots that have been mapped here and not replaced."""
        return len(self._mapped)

    def held(self) -> list[_Mapped]:
        """Returns the slots of batches that were delivered and not dropped."""
        return [slot for slot in list(self._mapped.values()) if slot.is_held()]

    def add_worker(self, number: int) -> int:
        """Returns the descriptor of a worker's object.

        A worker has the object of the one before it with the same number, which has ended.

        Raises:
            OSError: there are too many open files.
        """
        memory = self._objects.get(number)
        if memory is None:
            fd = objects.create(0, "batch", grows=True)
            self._objects[number] = memory = identify_object(fd)
            self._fds[memory] = fd
        self._begins[memory] = os.fstat(self._fds[memory]).st_size
        return self._fds[memory]

    def view(self, memory: int, offset: int, size: int, offsets: Iterable[int]) -> Owner:
        """Returns a batch's bytes.

        Args:
            memory: number of the worker's object, see ``identify_object``.
            offset: offset of the slot in the object.
            size: size of the slot.
            offsets: offsets of the slots that the worker had when it sent the batch.

        Raises:
            OSError: the slot cannot be mapped.
        """
        self.collect()
        slot = self._mapped.get((memory, offset))
        if slot is None:
            slot = _Mapped(self._fds[memory], offset, size, memory)
            self._forget_replaced(memory, set(offsets))
            self._mapped[memory, offset] = slot
            used = sum(os.fstat(fd).st_blocks * 512 for fd in self._fds.values())
            self.peak_bytes = max(self.peak_bytes, used)
        slot.is_leased = True
        return slot.view()

    def lease(self, owner: Owner) -> None:
        """Has a slot freed after the last reference to its batch's bytes, ``owner``.

        The caller keeps ``owner`` before: an exception just behind this call frees nothing then,
        and the call may be made again.
        """
        slot: _Mapped = owner.slot  # type: ignore[attr-defined]
        slot.hold(owner, self._ended.append)

    def _forget_replaced(self, memory: int, offsets: set[int]) -> None:
        """Unmaps slots that a worker has replaced, and frees the memory of ended workers' slots.

        ``offsets`` may be older than an earlier lease, because batches are not taken in the order
        in which they were sent. So slots in use stay, even if they are not in ``offsets``.
        """
        for key, slot in list(self._mapped.items()):
            if key[0] != memory or key[1] in offsets or slot.is_leased:
                continue
            if slot in self._seen or slot in self._left:
                continue
            if slot.offset >= self._begins[memory]:
                del self._mapped[key]
            elif slot.is_free():  # an ended worker's, and not of a batch that is not taken yet
                del self._mapped[key]
                objects.discard(self._fds[memory], slot.offset, slot.size)

    def collect(self) -> None:
        """Frees the slots of batches that were dropped.

        No call is made while a slot moves from one list to another. A call may raise, and then the
        slot would be in both, and would be freed a second time while it contains another batch.
        """
        if os.getpid() != self._here:  # a forked child's copy of a batch is not the batch
            return
        while self._ended:
            slot = self._mapped[self._ended[0].key]
            self._seen += [slot]
            slot.is_leased = False
            del self._ended[0]
        # Asked once, because another thread may fork meanwhile.
        waiting = {slot for slot in self._seen if forks.is_seen(slot)}
        unseen = [slot for slot in self._seen if slot not in waiting]
        self._seen[:] = [slot for slot in self._seen if slot in waiting]
        for slot in self._seen:
            slot.leave()
        for dropped in unseen:  # after they left the list, so that an exception frees none twice
            if dropped.is_left():
                self._left.append(dropped)
            else:
                dropped.set_free(True)
        if self._left:
            self._discard_given_up()

    def _discard_given_up(self) -> None:
        """Returns the memory of slots that nobody uses any more: the worker may have ended."""
        for key, slot in list(self._mapped.items()):
            is_unused = slot.is_given_up() or slot.offset < self._begins[key[0]]
            if slot in self._left and is_unused:
                self._left.remove(slot)
                del self._mapped[key]
                objects.discard(self._fds[key[0]], slot.offset, slot.size)

    def free(self, memory: int, offset: int) -> None:
        os.pwrite(self._fds[memory], bytes(4), offset)  # clears the word

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # modules are cleared, and the kernel frees the memory
            return
        self.collect()
        for memory, fd in self._fds.items():
            if os.getpid() == self._here:  # the parent of a forked child still uses the memory
                self._discard_unused(memory, fd)
            os.close(fd)

    def _discard_unused(self, memory: int, fd: int) -> None:
        """Returns all memory to the system, except that of batches in use."""
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
