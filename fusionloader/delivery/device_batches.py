"""Batches on a device: copied while they are made, delivered when training's stream can wait."""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import torch

from fusionloader import _native
from fusionloader._native import cuda as native
from fusionloader.aliases import Batch
from fusionloader.delivery.cuda_device import CudaDevice, Device
from fusionloader.delivery.device_memory import DeviceMemory
from fusionloader.delivery.device_ring import DeviceBuffer, DeviceRing
from fusionloader.delivery.level_rows import LevelRows
from fusionloader.executors.layout import Layout
from fusionloader.gpu_memory.errors import MemorySharingError
from fusionloader.shm.slots import Owner


@dataclass(slots=True)
class Copying:
    """A mini-batch that is copied as its tiny-batches complete; ``rows`` of it.

    ``begun_ns`` is when that began, by ``CLOCK_MONOTONIC``.
    """

    number: int
    buffer: DeviceBuffer
    staging: DeviceMemory | None
    layout: Layout
    rows: int
    begun_ns: int


@dataclass(slots=True)
class Arriving:
    """A batch that is being copied; it is complete when the device has passed ``ready``.

    ``nbytes`` of it are in host memory, and ``begun_ns`` is when the copy began.
    """

    layout: Layout
    leaves: list[torch.Tensor]
    ready: native.Event
    nbytes: int
    begun_ns: int


class DeviceDelivery:
    """Copies batches to a device ahead of their delivery.

    Attributes:
        ring: the device memory that batches are copied to.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.ring = DeviceRing(device)
        # Host memory that a copy may still be reading.
        self._read: deque[tuple[native.Event, Owner]] = deque()
        # Also where an epoch is left: the memory of both sides is somebody else's afterwards.
        weakref.finalize(self, _wait_for, self._read, os.getpid()).atexit = False

    def open(
        self, queue: _native.ManagerQueue, gpu_worker: int | None, levels: LevelRows | None
    ) -> QueueCopies:
        """Returns the copies of a queue's mini-batches.

        Args:
            queue: lives for longer.
            gpu_worker: the number of the worker that writes its rows on the device itself.
            levels: how rows of levels become elements, if they are levels.
        """
        return QueueCopies(self.device, self.ring, queue, gpu_worker, levels)

    def arriving(self, copies: QueueCopies, copying: Copying, owner: Owner) -> Arriving:
        """Returns a batch whose mini-batch is done; ``owner`` is of its rows in host memory."""
        layout, leaves, ready = copies.finish(copying, owner)
        self._read.append((ready, owner))
        while self._read and self._read[0][0].query():
            self._read.popleft()
        self.ring.deliver(copying.buffer)
        nbytes = copying.layout.batch_bytes(copying.rows)
        return Arriving(layout, leaves, ready, nbytes, copying.begun_ns)

    def finish(self, pending: Arriving) -> Batch:
        """Returns the batch; the current stream waits until it is complete.

        Small leaves are copied: labels that are kept would keep the images beside them.
        """
        pending.ready.hold_back(self.device.current_stream())
        whole = sum(leaf.nbytes for leaf in pending.leaves)
        kinds = [leaf.kind for leaf in pending.layout.leaves]
        leaves = [
            self.device.copied(leaf) if kind != "text" and 0 < leaf.nbytes * 8 <= whole else leaf
            for leaf, kind in zip(pending.leaves, kinds, strict=True)
        ]
        return pending.layout.build(leaves)


def _wait_for(read: deque[tuple[native.Event, Owner]], pid: int) -> None:
    while read and os.getpid() == pid:  # in a forked child CUDA is the parent's
        with suppress(MemorySharingError):  # a device that is lost reads nothing more
            read[0][0].synchronize()
        read.popleft()


class QueueCopies:
    """The mini-batches of one queue on their way, see ``csrc/delivery/copier.hpp``."""

    def __init__(
        self,
        device: Device,
        ring: DeviceRing,
        queue: _native.ManagerQueue,
        gpu_worker: int | None,
        levels: LevelRows | None,
    ) -> None:
        """See ``DeviceDelivery.open``."""
        self._device, self._ring, self._levels = device, ring, levels
        self._staging: list[DeviceMemory] = []
        conversion = None
        if levels is not None:
            kernel = device.conversion_kernel()
            assert isinstance(kernel, int)
            self._table = device.allocate(len(levels.table))
            native.write(device.number, self._table.address, levels.table)
            conversion = (kernel, self._table.address, levels.plane_levels, levels.element_bytes)
        self._copier = native.Copier(queue, device.number, gpu_worker, conversion)

    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied to the device."""
        return self._copier.copied_bytes

    @property
    def copy_seconds(self) -> float:
        """The device's time for all copies, from that for some of them; 0.0 before any."""
        nbytes, seconds = self._copier.timed
        return seconds / nbytes * self._copier.copied_bytes if nbytes else 0.0

    def nbytes(self, layout: Layout, rows: int) -> int:
        """Returns the bytes on the device of a mini-batch of so many rows of a layout."""
        return max(self._on_device(layout).batch_bytes(rows), 1)

    def begin(
        self, slot: int, layout: Layout, rows: int, address: int, buffer: DeviceBuffer
    ) -> Copying:
        """Begins to copy a mini-batch.

        Args:
            slot: of its descriptor.
            layout: of its rows in host memory.
            rows: of it.
            address: of its rows in host memory, which is page-locked.
            buffer: for it on the device.
        """
        begun_ns = time.monotonic_ns()
        on_device = self._on_device(layout)
        places = zip(layout.leaves, layout.offsets(rows), on_device.offsets(rows), strict=True)
        leaves = [
            (address + here, buffer.address + there, leaf.nbytes)
            for leaf, here, there in places
            if leaf.kind != "text" and leaf.nbytes  # texts stay in host memory
        ]
        staging = None
        if self._levels is not None:
            staging = self._staging_memory(layout.leaves[0].nbytes * rows)
        number = self._copier.begin(slot, leaves, 0 if staging is None else staging.address)
        return Copying(number, buffer, staging, layout, rows, begun_ns)

    def finish(
        self, copying: Copying, owner: Owner
    ) -> tuple[Layout, list[torch.Tensor], native.Event]:
        """Copies what is left of a mini-batch that is done.

        Returns:
            Its layout, its leaves, and when they are complete.
        """
        ready = self._copier.finish(copying.number)
        self._give_staging(copying)
        layout, rows = self._on_device(copying.layout), copying.rows
        leaves = layout.tensors(copying.buffer.memory, rows, rows)
        if any(leaf.kind == "text" for leaf in layout.leaves):
            host = copying.layout.tensors(owner, rows, rows)
            for place, leaf in enumerate(layout.leaves):
                if leaf.kind == "text":
                    leaves[place] = host[place]
        for place, leaf in enumerate(layout.leaves):
            if leaf.nbytes == 0:
                leaves[place] = leaves[place].to(copying.buffer.memory.device)
        return layout, leaves, ready

    def cancel(self, copying: Copying) -> native.Event:
        """Copies no more of a mini-batch; what is under way reads its slot until the event."""
        behind = self._copier.cancel(copying.number)
        self._give_staging(copying)
        self._ring.release(copying.buffer, behind)
        return behind

    def close(self) -> None:
        """Ends the thread."""
        self._copier.close()

    def _on_device(self, layout: Layout) -> Layout:
        return layout if self._levels is None else self._levels.layout

    def _staging_memory(self, nbytes: int) -> DeviceMemory:
        for memory in self._staging:
            if memory.nbytes >= nbytes:
                self._staging.remove(memory)
                return memory
        return self._device.allocate(nbytes)

    def _give_staging(self, copying: Copying) -> None:
        # At once: whatever is copied there next is behind the conversion, in the same stream.
        if copying.staging is not None:
            self._staging.append(copying.staging)
            copying.staging = None


def make_delivery(device: torch.device | str | int | None) -> DeviceDelivery | None:
    """Returns the delivery for a loader's device, ``None`` where it is no CUDA device."""
    if device is None or torch.device(device).type != "cuda":
        return None
    return DeviceDelivery(CudaDevice(torch.device(device)))
