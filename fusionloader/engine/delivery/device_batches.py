"""Batches on a device: copied while they are made, and delivered as soon as they are enqueued."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import torch

from fusionloader import _native
from fusionloader._native import cuda as native
from fusionloader.engine.delivery.cuda_device import CudaDevice
from fusionloader.engine.delivery.device_ring import DeviceBuffer, DeviceRing
from fusionloader.engine.delivery.program_rows import RowConversion
from fusionloader.options.aliases import Batch
from fusionloader.system.finalizers import Finalizer
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.shm.slots import Owner
from fusionloader.transforms.executors.layout import Layout


@dataclass(slots=True)
class Copying:
    """A mini-batch that is copied to the device as its tiny-batches complete.

    Attributes:
        ticket: ticket of the copier, which copies for as long as it lives; ``None`` after an
            exception, when the mini-batch has to be copied anew.
        leaves: tensors on the device; ``None`` for texts.
        buffer: buffer of the first leaf, if the GPU worker writes rows into it.
        staging: device memory for rows of the first leaf, until they are converted.
        layout: layout of the rows in host memory.
        rows: number of rows.
        begun_ns: time when the copy began, by ``CLOCK_MONOTONIC``.
    """

    ticket: native.CopyTicket | None
    leaves: list[torch.Tensor | None]
    buffer: DeviceBuffer | None
    staging: torch.Tensor | None
    layout: Layout
    rows: int
    begun_ns: int


@dataclass(slots=True)
class Arriving:
    """A batch whose copies are all enqueued.

    Attributes:
        layout: layout of the rows in host memory.
        leaves: all leaves, with texts in host memory.
        on_device: the leaves that are on the device.
        buffer: buffer of the first leaf, if the GPU worker may have written into it.
        ready: event after the last copy.
        nbytes: bytes of the rows in host memory.
        begun_ns: time when the copy began, by ``CLOCK_MONOTONIC``.
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
        device: the device.
        ring: device memory that a GPU worker writes into.
    """

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.ring = DeviceRing(device)
        # Host memory that a copy may still read.
        self._read: deque[tuple[native.Event, Owner]] = deque()
        # Also if an epoch is abandoned: the memory of both sides is reused afterwards.
        Finalizer(self, _finish, device, self._read, os.getpid())

    def open(
        self, queue: _native.ManagerQueue, gpu_worker: int | None, conversion: RowConversion | None
    ) -> QueueCopies:
        """Returns the copies of a queue's mini-batches.

        Args:
            queue: the queue, which must outlive the copies.
            gpu_worker: number of the worker that writes its rows on the device, if there is one.
            conversion: what the device does to the first leaf of each row.
        """
        return QueueCopies(self.device, self.ring, queue, gpu_worker, conversion)

    def arriving(self, copies: QueueCopies, copying: Copying, owner: Owner) -> Arriving:
        """Enqueues the remaining copies of a mini-batch that is done, and returns its batch.

        ``owner`` keeps the rows in host memory until they are read.
        """
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
        """Returns the batch. Work enqueued in the current stream from now on waits for it."""
        stream = self.device.current_stream()
        pending.ready.hold_back(stream)
        if pending.buffer is not None:
            pending.buffer.stream = stream
        # The ring keeps its buffer, of which torch's allocator does not know.
        of_torch = pending.on_device if pending.buffer is None else pending.on_device[1:]
        for leaf in of_torch:
            self.device.record_stream(leaf)
        return pending.layout.build(pending.leaves)


def _finish(device: CudaDevice, read: deque[tuple[native.Event, Owner]], pid: int) -> None:
    if read and os.getpid() == pid:  # in a forked child CUDA belongs to the parent
        with suppress(RuntimeError):  # a device that has failed reads nothing more
            wait_for_copies(device)
    read.clear()


def wait_for_copies(device: CudaDevice) -> None:
    try:
        native.synchronize(device.number, device.copy_stream)
    except MemorySharingError:  # torch's call may succeed where ours is refused
        device.synchronize()


class QueueCopies:
    """Copies the mini-batches of one queue, see ``csrc/delivery/copier.hpp``."""

    def __init__(
        self,
        device: CudaDevice,
        ring: DeviceRing,
        queue: _native.ManagerQueue,
        gpu_worker: int | None,
        conversion: RowConversion | None,
    ) -> None:
        self._device, self._ring, self._conversion = device, ring, conversion
        self._work: torch.Tensor | None = None  # of programs; launches follow one another
        for_copier = None
        if conversion is not None:
            kernel = device.conversion_kernel(conversion.kernel)
            assert isinstance(kernel, int)
            self._table = device.upload(conversion.table)
            for_copier = conversion.for_copier(kernel, self._table.data_ptr())
        stream = device.copy_stream
        self._copier = native.Copier(queue, device.number, stream, gpu_worker, for_copier)

    @property
    def copied_bytes(self) -> int:
        return self._copier.copied_bytes

    @property
    def copy_seconds(self) -> float:
        """Time of all copies on the device, in seconds, extrapolated from the timed ones."""
        nbytes, seconds = self._copier.timed
        return seconds / nbytes * self._copier.copied_bytes if nbytes else 0.0

    def shared_bytes(self, layout: Layout, rows: int) -> int:
        """Returns the bytes of the first leaf of ``rows`` rows, which a GPU worker may write."""
        return self._on_device(layout).leaves[0].nbytes * rows

    def begin(
        self, slot: int, layout: Layout, rows: int, address: int, buffer: DeviceBuffer | None
    ) -> Copying:
        """Begins to copy a mini-batch.

        Args:
            slot: slot of its descriptor.
            layout: layout of its rows in host memory.
            rows: number of rows.
            address: address of the rows, in page-locked memory.
            buffer: buffer of the first leaf, if the GPU worker writes rows into it.

        Raises:
            torch.OutOfMemoryError: the device has too little memory.
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
        if self._conversion is not None:
            self._reserve_work(self._conversion.work_bytes(rows))
            staging = empty((layout.leaves[0].nbytes * rows,), torch.uint8)
        ticket = self._copier.begin(slot, copied, 0 if staging is None else staging.data_ptr())
        return Copying(ticket, leaves, buffer, staging, layout, rows, begun_ns)

    def finish(self, copying: Copying) -> native.Event:
        """Enqueues the remaining copies of a mini-batch; returns the event behind them."""
        work = 0 if self._work is None else self._work.data_ptr()
        assert copying.ticket is not None
        ready = self._copier.finish(copying.ticket, work)
        copying.staging = None  # only later work in the copy stream can reuse the memory
        return ready

    def cancel(self, copying: Copying) -> None:
        """Stops the copy of a mini-batch, and waits until nothing reads its slot."""
        copying.ticket = None
        if copying.buffer is not None:
            self._ring.end(copying.buffer)
        wait_for_copies(self._device)

    def close(self) -> None:
        self._copier.close()

    def _reserve_work(self, nbytes: int) -> None:
        """Has memory for programs. Only later work in the copy stream can reuse the one before."""
        if nbytes > (0 if self._work is None else self._work.nbytes):
            self._work = self._device.empty((nbytes,), torch.uint8)

    def _on_device(self, layout: Layout) -> Layout:
        return layout if self._conversion is None else self._conversion.layout


def make_delivery(device: torch.device | str | int | None) -> DeviceDelivery | None:
    """Returns the delivery for a loader's device; ``None`` if that is no CUDA device.

    Nor with an allocator that is plugged into torch: it may give memory of the copy stream to the
    next batch while training's stream still reads it, since ``record_stream`` has no effect.
    """
    if device is None or torch.device(device).type != "cuda":
        return None
    if torch.cuda.get_allocator_backend() == "pluggable":
        return None
    return DeviceDelivery(CudaDevice(torch.device(device)))
