"""Memory of the mini-batches in flight: descriptors, rows, and buffers on the device."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

from fusionloader import _native
from fusionloader.delivery.device_ring import BufferOpener
from fusionloader.executors.layout import Layout
from fusionloader.manager.in_flight import Job, MiniBatch
from fusionloader.manager.options import ManagerOptions
from fusionloader.shm import objects
from fusionloader.shm.slots import Arena, Owner, Slot, SlotPool


class BatchMemory:
    """Slots of a queue's arena for its mini-batches, and for the layout of their rows.

    Attributes:
        layout: of the rows; ``None`` until a sample has shown it.
    """

    def __init__(
        self,
        options: ManagerOptions,
        arena: Arena,
        queue: _native.ManagerQueue,
        most: int,
    ) -> None:
        """``most`` mini-batches are published at a time."""
        self._options = options
        self._ring, self._gpu = options.ring, options.gpu
        self._queue = queue
        self._descriptors = SlotPool(arena, queue, spare=most)
        self._rows = SlotPool(arena, queue, options.in_flight + 2, options.page_locking)
        self.layout: Layout | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that rows have taken at a time."""
        return self._rows.peak_bytes

    def settle(self, layout: Layout, jobs: Iterable[Job]) -> None:
        """Lets workers know the layout of rows; those of ``jobs`` have none yet."""
        self.layout = layout
        for job in jobs:
            job.payload = self.rows_for(job.batch)
            assert job.payload is not None
            self._queue.set_payload(job.slot, job.payload.number)
        pickled = pickle.dumps(layout)
        self._queue.announce_layout(self._descriptors.acquire(len(pickled)).number, pickled)

    def descriptor_for(self, batch: MiniBatch) -> Slot:
        """Returns a slot to describe a mini-batch in."""
        samples, size = len(batch.items), self._options.tiny_batch_size
        room = _native.ManagerQueue.descriptor_bytes(samples, -(-samples // size))
        return self._descriptors.acquire(room + len(batch.pickled))

    def rows_for(self, batch: MiniBatch) -> Slot | None:
        """Returns a slot for the rows of a mini-batch; ``None`` while their layout is unknown."""
        if self.layout is None:
            return None
        rows = len(batch.items)
        nbytes = self.layout.batch_bytes(rows)
        if self._rows.peak_bytes == 0:
            count = self._options.in_flight + 1
            what = f"{count} batches of {rows} samples in flight"
            objects.check_room(nbytes * count, what)
        return self._rows.acquire(max(nbytes, 1))

    def release(self, job: Job) -> None:
        """Takes the slots of a mini-batch back; its rows only if it was not delivered."""
        self._descriptors.release(job.descriptor)
        if job.payload is not None:
            self._rows.release(job.payload)
        if job.device is not None and self._ring is not None:
            self._ring.release(job.device)

    def deliver(self, job: Job) -> Owner:
        """Returns an owner of the mini-batch's rows; the slot is free again when it is gone."""
        assert job.payload is not None
        self._descriptors.release(job.descriptor)
        return self._rows.lease(job.payload)

    # ---- on the device -------------------------------------------------------------------------

    def shared_buffers(self) -> list[BufferOpener]:
        """Returns those that a GPU worker has to open."""
        if self._ring is None:
            return []
        assert self.layout is not None and self._gpu is not None
        nbytes = self.layout.batch_bytes(self._options.batch_size)
        return self._ring.share(self._gpu.buffers, nbytes, in_process=self._gpu.in_thread)

    def give_buffers(self, jobs: Iterable[Job]) -> None:
        """Lets the GPU worker write into the oldest mini-batches, as far as buffers go."""
        if self._ring is None:
            return
        assert self.layout is not None
        for job in jobs:
            if job.device is None and not job.discarded:
                job.device = self._ring.acquire_shared(self.layout.batch_bytes(len(job.rows)))
                if job.device is None:
                    return
                self._queue.set_gpu_rows(job.slot, job.device.number + 1)
