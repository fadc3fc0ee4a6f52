"""A job's view of the batches in a group's slots.

Slots are mapped copy-on-write: training may write into a batch, and no other job sees that. Pages
that were not written are those of the slot. When a batch is released, the written pages are
dropped, so that the slot's next batch is visible. Before the job leaves the group or forks, its
batches are copied as a whole, because their slots may be reused at any time.
"""

from __future__ import annotations

import ctypes
import weakref

import torch

from fusionloader import _native
from fusionloader.sharing.jobs.connection import CoordinatorConnection, HeldBatch, PreparedBatch
from fusionloader.system.shm.slots import Owner
from fusionloader.transforms.executors.layout import Memory

_MOST_HELD = 2  # slots that training may hold, as the group waits for them; others are copied


class GroupMemory:
    """Maps each slot of a group when it first holds a batch."""

    def __init__(self, data_fd: int, connection: CoordinatorConnection, page_locked: bool) -> None:
        """With ``page_locked``, all batches are copied to page-locked memory."""
        self._data_fd = data_fd
        self._released, self._held = connection.released, connection.held
        self._page_locked = page_locked
        self._mappings: dict[int, _native.SharedMapping] = {}  # by slot
        self._peak_bytes = 0

    def get_memory(self, prepared: PreparedBatch) -> Memory:
        """Returns the batch's slot, or a copy if training already holds ``_MOST_HELD`` slots."""
        mapping = self._mapping(prepared)
        if self._page_locked or len(self._held) >= _MOST_HELD:
            source = torch.frombuffer(memoryview(mapping), dtype=torch.uint8)
            copy = torch.empty(
                prepared.nbytes, dtype=torch.uint8, device="cpu", pin_memory=self._page_locked
            )
            copy.copy_(source)
            return copy
        owner: Owner = (ctypes.c_char * prepared.nbytes).from_buffer(memoryview(mapping))
        return owner

    def deliver(self, prepared: PreparedBatch, memory: Memory) -> None:
        """Releases the batch's slot once nothing refers to ``memory``; at once for a copy."""
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
    """Ends the lease of a delivered batch; called when its memory is collected."""

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
        self._mapping.discard_writes()  # first: once released, the slot may get another batch
        self._held.pop(self._number, None)
        self._released.append(self._number)
