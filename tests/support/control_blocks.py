"""The manager's and the workers' faces of one control block, without a loader."""

from __future__ import annotations

import os
from typing import Any

from fusionloader import _native
from fusionloader.system.shm import objects
from fusionloader.system.shm.slots import Arena, Slot, SlotPool


def publish(
    manager: _native.ManagerQueue,
    slots: SlotPool,
    sequence: int,
    samples: int,
    tiny_size: int,
    gpu_rows: int = 0,
    **more: Any,
) -> Slot:
    """Publishes a mini-batch of samples 0, 1, ...; returns the slot of its descriptor."""
    tiny_batches = -(-samples // tiny_size)
    slot = slots.acquire(_native.ManagerQueue.descriptor_bytes(samples, tiny_batches))
    rows = list(range(samples))
    manager.describe(
        slot.number,
        sequence=sequence,
        rows=rows,
        items=rows,
        keys=rows,
        occurrences=[0] * samples,
        tiny_size=tiny_size,
        seed=1,
        epoch=2,
        **({"number": 0} | more),
    )
    manager.set_gpu_rows(slot.number, gpu_rows)
    manager.publish(slot.number, sequence)
    return slot


class ControlBlock:
    """A manager, whose slots it has, and workers that attach to it."""

    def __init__(self, workers: int, ring: int = 8, guest_slots: int = 0) -> None:
        size = _native.ManagerQueue.control_bytes(workers + guest_slots, ring)
        self.control_fd = objects.create(size)
        self.arena = Arena()
        guests = (guest_slots, workers) if guest_slots else ()
        self.manager = _native.ManagerQueue(self.control_fd, self.arena.fd, workers, ring, *guests)
        self.slots = SlotPool(self.arena, self.manager, spare=ring)
        self.slot_of: dict[int, Slot] = {}

    def attach(self, number: int = 0, gpu: bool = False) -> _native.WorkerQueue:
        return _native.WorkerQueue(self.control_fd, self.arena.fd, number, gpu)

    def publish(self, sequence: int, samples: int, tiny_size: int = 1, **more: Any) -> None:
        slot = publish(self.manager, self.slots, sequence, samples, tiny_size, **more)
        self.slot_of[sequence] = slot

    def status(self, sequence: int) -> Any:
        return self.manager.status(self.slot_of[sequence].number)

    def open(self, sequence: int) -> tuple[int, int]:
        """How many tiny-batches wait, and how many are claimed."""
        status = self.status(sequence)
        return status.waiting, status.active

    def close(self) -> None:
        os.close(self.control_fd)
        self.arena.close()
