"""Batches on a device: rows that CPU workers wrote are copied, the GPU worker's are there."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_map

from fusionloader.aliases import Batch
from fusionloader.delivery.device_copies import Copies, CudaCopies
from fusionloader.delivery.device_ring import DeviceBuffer, DeviceRing
from fusionloader.executors.layout import Layout

if TYPE_CHECKING:
    from fusionloader.shm.slots import Mark, Owner


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Returns ``batch`` with its tensors on ``device``; copies from page-locked memory overlap."""

    def move(leaf: object) -> object:
        return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(move, batch)


@dataclass(slots=True)
class Arriving:
    """A batch that is being copied; it is complete when the device has passed ``ready``."""

    batch: Batch
    ready: Mark


class DeviceDelivery:
    """Copies batches to a device ahead of their delivery.

    Attributes:
        ring: the device memory that batches are copied to.
    """

    def __init__(self, copies: Copies, ring: DeviceRing) -> None:
        self._copies = copies
        self.ring = ring
        # Host memory that a copy may still be reading.
        self._read: deque[tuple[Mark, Owner]] = deque()
        # Also where an epoch is left: the memory of both sides is somebody else's afterwards.
        weakref.finalize(self, _wait_for, self._read).atexit = False

    def begin(
        self,
        layout: Layout,
        owner: Owner,
        buffer: DeviceBuffer | None,
        count: int,
        on_device: Sequence[int] = (),
    ) -> Arriving:
        """Starts copying a batch.

        Args:
            layout: of the samples.
            owner: host memory of the whole batch.
            buffer: device memory for it, ``None`` to acquire some.
            count: rows of the batch.
            on_device: rows whose first leaf the GPU worker has written into ``buffer``.
        """
        if buffer is None:
            buffer = self.ring.acquire(layout.batch_bytes(count))
        host = layout.tensors(owner, count, count)
        device = layout.tensors(buffer.memory, count, count)
        for place, leaf in enumerate(layout.leaves):
            if leaf.kind == "text":  # stays in host memory
                device[place] = host[place]
        runs = list(runs_without(on_device, count))

        def copy() -> None:
            for number, (source, target) in enumerate(zip(host, device, strict=True)):
                if source is target:
                    continue
                for begin, end in runs if number == 0 else [(0, count)]:
                    target[begin:end].copy_(source[begin:end], non_blocking=True)

        ready = self._copies.run(copy)
        self._read.append((ready, owner))
        while self._read and self._read[0][0].query():
            self._read.popleft()
        batch = layout.build(device)
        self.ring.deliver(buffer)
        return Arriving(batch, ready)

    def finish(self, pending: Arriving) -> Batch:
        """Returns the batch; the current stream waits until it is complete."""
        self._copies.consumer_waits(pending.ready)
        return pending.batch


def _wait_for(read: deque[tuple[Mark, Owner]]) -> None:
    while read:
        read[0][0].synchronize()
        read.popleft()


def make_delivery(device: torch.device | str | int | None) -> DeviceDelivery | None:
    """Returns the delivery for a loader's device, ``None`` where it is no CUDA device."""
    if device is None or torch.device(device).type != "cuda":
        return None
    copies = CudaCopies(torch.device(device))
    return DeviceDelivery(copies, DeviceRing(copies))


def runs_without(rows: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Yields the runs of 0 .. ``count`` - 1 between ``rows``, as begin and end."""
    begin = 0
    for row in [*sorted(rows), count]:
        if row > begin:
            yield begin, row
        begin = row + 1
