"""Shared memory for whole batches, owned by the worker that makes them and used again and again.

A slot begins with a word that says whether a batch lies in it: the worker sets it when it has
written one, the training process clears it when the last reference to that batch is gone. Each
side writes it only while the other waits for it, so that no lock is needed.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from fusionloader import _native
from fusionloader.shm import objects

Owner = ctypes.Array[ctypes.c_char]
"""A batch's bytes: its slot is in use for as long as something refers to it."""

_HEADER = 64  # bytes before the batch, of which the first is the word
_GRAIN = 1 << 16  # sizes are rounded up to these, so that alike batches find the same slots
_FREE, _IN_USE = 0, 1


class _Mapped:
    """A slot, mapped in this process."""

    def __init__(self, number: int, fd: int, nbytes: int) -> None:
        self.number, self.nbytes = number, nbytes
        self._map = _native.SharedMapping(fd, 0, _HEADER + nbytes)
        self._word = ctypes.c_uint32.from_buffer(self._map)
        self._held: weakref.ref[Owner] | None = None

    def is_free(self) -> bool:
        """Whether no batch lies in it, and nothing here looks into it either."""
        held = self._held is not None and self._held() is not None
        return self._word.value == _FREE and not held

    def set_free(self, free: bool) -> None:
        self._word.value = _FREE if free else _IN_USE

    def bytes(self) -> Owner:
        owner = (ctypes.c_char * self.nbytes).from_buffer(self._map, _HEADER)
        self._held = weakref.ref(owner)
        return owner


class BatchSlots:
    """The slots of one worker process."""

    def __init__(self, most: int) -> None:
        """There are at most ``most``: those of batches in flight, and some that are looked at."""
        self._most = most
        self._made = 0
        self._slots: list[_Mapped] = []
        self._fds: dict[int, int] = {}  # of slots that the training process has not heard of

    def acquire(self, nbytes: int) -> _Mapped | None:
        """Returns a free slot for so many bytes; ``None`` where there is none."""
        fitting = [slot for slot in self._slots if slot.nbytes >= nbytes and slot.is_free()]
        if fitting:
            return min(fitting, key=lambda slot: slot.nbytes)
        if len(self._slots) >= self._most:
            smaller = next((slot for slot in self._slots if slot.is_free()), None)
            if smaller is None:
                return None
            self._slots.remove(smaller)
            unsent = self.take_fd(smaller)
            if unsent is not None:
                os.close(unsent)
        size = -(-nbytes // _GRAIN) * _GRAIN
        fd = objects.create(_HEADER + size, "batch")
        try:
            objects.reserve(fd, 0, _HEADER + size)
        except objects.SharedMemoryExhausted:
            os.close(fd)
            return None
        slot = _Mapped(self._made, fd, size)
        self._made += 1
        self._slots.append(slot)
        self._fds[slot.number] = fd
        return slot

    def take_fd(self, slot: _Mapped) -> int | None:
        """Returns the descriptor to send with a slot's first batch, for the caller to close."""
        return self._fds.pop(slot.number, None)

    @property
    def numbers(self) -> list[int]:
        """Slots that there are; others have been replaced by larger ones."""
        return [slot.number for slot in self._slots]


class WorkersSlots:
    """The slots of a loader's workers, in the training process."""

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int], _Mapped] = {}

    def lease(
        self, worker: int, number: int, nbytes: int, fd: int | None, numbers: Iterable[int]
    ) -> Owner:
        """Returns a batch's bytes.

        Args:
            worker: process id of the worker.
            number: of its slot.
            nbytes: of the slot.
            fd: of the slot, with its first batch.
            numbers: of the slots that the worker has.
        """
        if fd is not None:
            self._mapped[worker, number] = _Mapped(number, fd, nbytes)
            known = {(worker, there) for there in numbers}
            for key in [key for key in self._mapped if key[0] == worker and key not in known]:
                del self._mapped[key]  # it stays mapped while a batch lies in it
        slot = self._mapped[worker, number]
        owner = slot.bytes()
        weakref.finalize(owner, _free_here(slot)).atexit = False
        return owner


def _free_here(slot: _Mapped) -> Callable[[], Any]:
    here = os.getpid()

    def free() -> None:
        if os.getpid() == here:  # a forked child's copy of the batch is not the batch
            slot.set_free(True)

    return free
