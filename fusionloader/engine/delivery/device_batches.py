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
from fusionloader.engine.delivery.cuda_device import CudaDevice, Device
from fusionloader.engine.delivery.device_ring import DeviceBuffer, DeviceRing
from fusionloader.engine.delivery.level_rows import LevelRows
from fusionloader.options.aliases import Batch
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.shm.slots import Owner
from fusionloader.transforms.executors.layout import Layout


@dataclass(slots=True)
class Copying:
    """A mini-batch that is copied as its tiny-batches complete; ``rows`` of it.

    ``leaves`` are on the device, but ``None`` for texts. The GPU worker writes its part of the
    first one into a ``buffer``, if it has a part. ``begun_ns`` is when the copy began, by
    ``CLOCK_MONOTONIC``.
    """

    number: int
    leaves: list[torch.Tensor | None]
    buffer: DeviceBuffer | None
    staging: torch.Tensor | None
    layout: Layout
    rows: int
    begun_ns: int


@dataclass(slots=True)
class Arriving:
    """A batch that is being copied; it is complete when the device has passed ``ready``.

    Its ``leaves`` but the texts are ``on_device``; the first one may be in a ``buffer`` of the GPU
    worker. ``nbytes`` of it are in host memory, and ``begun_ns`` is when the copy began.
    """

    layout: Layout
    leaves: list[torch.Tensor]
    on_device: list[torch.Tensor]
    buffer: DeviceBuffer | None
    ready: native.Event
    nbytes: int
    begun_ns: int


class DeviceDelivery:
    """Copies batches to a device ahead of their delivery.

    Attributes:
        ring: the device memory that a GPU worker writes into.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.ring = DeviceRing(device)
        # Host memory that a copy may still be reading.
        self._read: deque[tuple[native.Event, Owner]] = deque()
        # Also where an epoch is left: the memory of both sides is somebody else's afterwards.
        weakref.finalize(self, _finish, device, self._read, os.getpid()).atexit = False

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
        ready = copies.finish(copying)
        self._read.append((ready, owner))
        while self._read and self._read[0][0].query():
            self._read.popleft()
        if copying.buffer is not None:
            self.ring.end(copying.buffer)
        layout, rows = copying.layout, copying.rows
        on_device = [leaf for leaf in copying.leaves if leaf is not None]
        leaves = on_device
        if len(on_device) < len(copying.leaves):  # texts stay here
            host = layout.tensors(owner, rows, rows)
            pairs = zip(copying.leaves, host, strict=True)
            leaves = [text if leaf is None else leaf for leaf, text in pairs]
        nbytes, begun_ns = layout.batch_bytes(rows), copying.begun_ns
        return Arriving(layout, leaves, on_device, copying.buffer, ready, nbytes, begun_ns)

    def finish(self, pending: Arriving) -> Batch:
        """Returns the batch; the current stream waits until it is complete."""
        stream = self.device.current_stream()
        pending.ready.hold_back(stream)
        if pending.buffer is not None:
            pending.buffer.stream = stream
        for leaf in pending.on_device:
            self.device.record_stream(leaf)
        return pending.layout.build(pending.leaves)


def _finish(device: Device, read: deque[tuple[native.Event, Owner]], pid: int) -> None:
    if read and os.getpid() == pid:  # in a forked child CUDA is the parent's
        with suppress(RuntimeError):  # a device that is lost reads nothing more
            wait_for_copies(device)
    read.clear()


def wait_for_copies(device: Device) -> None:
    """Returns when no copy reads host memory any more."""
    try:
        native.synchronize(device.number, device.copy_stream)
    except MemorySharingError:  # our call is refused, perhaps torch's is not
        device.synchronize()


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
        conversion = None
        if levels is not None:
            kernel = device.conversion_kernel()
            assert isinstance(kernel, int)
            self._table = device.upload(levels.table)
            conversion = (kernel, self._table.data_ptr(), levels.plane_levels, levels.element_bytes)
        stream = device.copy_stream
        self._copier = native.Copier(queue, device.number, stream, gpu_worker, conversion)

    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied to the device."""
        return self._copier.copied_bytes

    @property
    def copy_seconds(self) -> float:
        """The device's time for all copies, from that for some of them; 0.0 before any."""
        nbytes, seconds = self._copier.timed
        return seconds / nbytes * self._copier.copied_bytes if nbytes else 0.0

    def shared_bytes(self, layout: Layout, rows: int) -> int:
        """Returns the bytes on the device of so many rows that a GPU worker may write."""
        return self._on_device(layout).leaves[0].nbytes * rows

    def begin(
        self, slot: int, layout: Layout, rows: int, address: int, buffer: DeviceBuffer | None
    ) -> Copying:
        """Begins to copy a mini-batch.

        Args:
            slot: of its descriptor.
            layout: of its rows in host memory.
            rows: of it.
            address: of its rows in host memory, which is page-locked.
            buffer: that the GPU worker writes its rows of the first leaf into, if it has a part.

        Raises:
            torch.OutOfMemoryError: the device has no room for it.
        """
        begun_ns, empty = time.monotonic_ns(), self._device.empty
        on_device = self._on_device(layout)
        leaves: list[torch.Tensor | None] = [
            None if leaf.kind == "text" else empty((rows, *leaf.shape), leaf.dtype)
            for leaf in (on_device.leaves if buffer is None else on_device.leaves[1:])
        ]
        if buffer is not None:
            first = on_device.leaves[0]
            leaves.insert(0, buffer.rows((rows, *first.shape), first.dtype))
        places = zip(layout.leaves, layout.offsets(rows), leaves, strict=True)
        copied = [
            (address + offset, there.data_ptr(), leaf.nbytes)
            for leaf, offset, there in places
            if there is not None and leaf.nbytes  # texts stay in host memory
        ]
        staging = None
        if self._levels is not None:
            staging = empty((layout.leaves[0].nbytes * rows,), torch.uint8)
        number = self._copier.begin(slot, copied, 0 if staging is None else staging.data_ptr())
        return Copying(number, leaves, buffer, staging, layout, rows, begun_ns)

    def finish(self, copying: Copying) -> native.Event:
        """Copies what is left of a mini-batch that is done; returns when it is complete."""
        ready = self._copier.finish(copying.number)
        copying.staging = None  # free for what is behind the conversion in the copy stream
        return ready

    def cancel(self, copying: Copying) -> None:
        """Copies no more of a mini-batch; returns when nothing reads its slot any more."""
        self._copier.cancel(copying.number)
        if copying.buffer is not None:
            self._ring.end(copying.buffer)
        wait_for_copies(self._device)

    def close(self) -> None:
        """Ends the thread."""
        self._copier.close()

    def _on_device(self, layout: Layout) -> Layout:
        return layout if self._levels is None else self._levels.layout


def make_delivery(device: torch.device | str | int | None) -> DeviceDelivery | None:
    """Returns the delivery for a loader's device, ``None`` where it is no CUDA device."""
    if device is None or torch.device(device).type != "cuda":
        return None
    return DeviceDelivery(CudaDevice(torch.device(device)))
