"""The manager's and the workers' faces of one control block, without a loader."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fusionloader import _native
from fusionloader.system.shm import objects
from fusionloader.system.shm.slots import Arena, Slot, SlotPool


class ControlBlock:
    """A manager, whose slots it has, and workers that attach to it, of which ``gpu`` has the GPU.

    ``shared`` are further arguments of ``ManagerQueue``: guest slots, workers that may be sent
    elsewhere, and the descriptor of events.
    """

    def __init__(self, workers: int, ring: int = 8, *shared: int, gpu: int = -1) -> None:
        records = workers + sum(shared[:1])
        self.control_fd = objects.create(_native.ManagerQueue.control_bytes(records, ring))
        self.arena = Arena()
        self.manager = _native.ManagerQueue(self.control_fd, self.arena.fd, workers, ring, *shared)
        self.slots = SlotPool(self.arena, self.manager, spare=ring)
        self.slot_of: dict[int, Slot] = {}
        self.payload_of: dict[int, Slot] = {}
        self.workers = [self.attach(number, number == gpu) for number in range(workers)]

    def attach(self, number: int = 0, gpu: bool = False) -> _native.WorkerQueue:
        return _native.WorkerQueue(self.control_fd, self.arena.fd, number, gpu)

    def publish(
        self,
        sequence: int,
        samples: int,
        tiny_size: int = 1,
        gpu_rows: int = 1,
        payload_bytes: int = 0,
        **more: Any,
    ) -> int:
        """Publishes a mini-batch of samples 0, 1, ...; returns its number of tiny-batches."""
        tiny_batches = -(-samples // tiny_size)
        slot = self.slots.acquire(_native.ManagerQueue.descriptor_bytes(samples, tiny_batches))
        self.slot_of[sequence] = slot
        if payload_bytes:
            self.payload_of[sequence] = self.slots.acquire(payload_bytes)
            more["payload"] = self.payload_of[sequence].number
        rows = range(samples)
        lists = {"rows": rows, "items": rows, "keys": rows, "occurrences": [0] * samples}
        numbers = {"tiny_size": tiny_size, "seed": 1, "epoch": 2, "number": 0}
        self.manager.describe(slot.number, sequence=sequence, **(lists | numbers | more))
        self.manager.set_gpu_rows(slot.number, gpu_rows)
        self.manager.publish(slot.number, sequence)
        return tiny_batches

    def status(self, sequence: int) -> Any:
        return self.manager.status(self.slot_of[sequence].number)

    def open(self, sequence: int) -> tuple[int, int]:
        """How many tiny-batches wait, and how many are claimed."""
        status = self.status(sequence)
        return status.waiting, status.active

    def close(self) -> None:
        os.close(self.control_fd)
        self.arena.close()


@pytest.fixture
def make_control_block() -> Iterator[Callable[..., ControlBlock]]:
    """Makes control blocks, of ``kind``, and closes them after the test."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, kind: Any = ControlBlock, **named: Any) -> ControlBlock:
            made: ControlBlock = kind(*arguments, **named)
            stack.callback(made.close)
            return made

        yield make
