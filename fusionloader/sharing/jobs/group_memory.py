"""Batches in the slots of a group, as one job sees them.

A slot is mapped copy-on-write: training may write into its batch, and no other job sees that. What
it has not written is the slot itself, without a copy. When a batch is released, what was written is
dropped, so that the next one in that slot shows. Before the job leaves the group, and before it
forks a child, which has the batch, too, all of it is copied: the slot may be used again any time.
"""

from __future__ import annotations

import ctypes
import weakref

import torch

from fusionloader import _native
from fusionloader.sharing.jobs.connection import CoordinatorConnection, HeldBatch, PreparedBatch
from fusionloader.system.shm.slots import Owner
from fusionloader.transforms.executors.layout import Memory

_MOST_HELD = 2  # batches that training may keep looking at; the group waits for their slots


class GroupMemory:
    """The slots of a group, mapped when a batch first comes in them."""

    def __init__(self, data_fd: int, connection: CoordinatorConnection, page_locked: bool) -> None:
        """``page_locked`` batches are copies."""
        self._data_fd = data_fd
        self._released, self._held = connection.released, connection.held
        self._page_locked = page_locked
        self._mappings: dict[int, _native.SharedMapping] = {}  # by slot
        self._peak_bytes = 0

    def get_memory(self, prepared: PreparedBatch) -> Memory:
        """Returns the memory of a batch: its slot; or a copy, if training keeps many."""
        mapping = self._mapping(prepared)
        if self._page_locked or len(self._held) >= _MOST_HELD:
            source = torch.frombuffer(memoryview(mapping), dtype=torch.uint8)
            copy = torch.empty(prepared.nbytes, dtype=torch.uint8, pin_memory=self._page_locked)
            copy.copy_(source)
            return copy
        owner: Owner = (ctypes.c_char * prepared.nbytes).from_buffer(memoryview(mapping))
        return owner

    def deliver(self, prepared: PreparedBatch, memory: Memory) -> None:
        """Has the slot of a batch released when nothing refers to ``memory`` any more."""
        if isinstance(memory, torch.Tensor):
            self.release(prepared)
        elif prepared.lease not in self._held:
            mapping = self._mapping(prepared)
            end = _Lease(prepared.lease, mapping, self._held, self._released)
            self._held[prepared.lease] = HeldBatch(weakref.ref(memory, end), mapping)

    def release(self, prepared: PreparedBatch) -> None:
        """Releases a batch that is not delivered."""
        self._released.append(prepared.lease)

    def _mapping(self, prepared: PreparedBatch) -> _native.SharedMapping:
        found = self._mappings.get(prepared.slot)
        if found is None:
            found = _native.SharedMapping(
                self._data_fd, prepared.offset, prepared.nbytes, copy_on_write=True
            )
            self._mappings[prepared.slot] = found
            self._peak_bytes += prepared.nbytes
        return found

    def totals(self) -> dict[str, int]:
        """Returns the fields of ``WorkerTotals`` that were counted here."""
        return {"slots": len(self._mappings), "shared_memory_bytes": self._peak_bytes}


class _Lease:
    """The end of a delivered batch."""

    __slots__ = ("_held", "_mapping", "_number", "_released")

    def __init__(
        self,
        number: int,
        mapping: _native.SharedMapping,
        held: dict[int, HeldBatch],
        released: list[int],
    ) -> None:
        self._number, self._mapping = number, mapping
        self._held, self._released = held, released

    def __call__(self, _: object) -> None:
        self._mapping.discard_writes()
        self._held.pop(self._number, None)
        self._released.append(self._number)
