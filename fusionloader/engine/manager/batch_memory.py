"""Memory of mini-batches in flight: descriptors, rows, and device buffers."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress

import torch

from fusionloader import _native
from fusionloader.engine.delivery.device_batches import Arriving, QueueCopies, wait_for_copies
from fusionloader.engine.delivery.device_ring import BufferOpener
from fusionloader.engine.manager.in_flight import Job
from fusionloader.engine.manager.options import ManagerOptions
from fusionloader.engine.manager.participant import Participant
from fusionloader.engine.manager.publications import MiniBatch
from fusionloader.options.aliases import Batch
from fusionloader.system.amounts import mib
from fusionloader.system.shm import objects
from fusionloader.system.shm.slots import Arena, Slot, SlotPool
from fusionloader.transforms.executors.batch_transport import read_packed, unpickled
from fusionloader.transforms.executors.layout import Layout, Memory

log = logging.getLogger("fusionloader.manager")

# Mini-batches copied to the device while they are made. Workers begin with the oldest.
_ON_THE_WAY = 2
# Least number in flight, however large a mini-batch is: the one being made, and the next one.
_FEWEST = 2
_SPARE_BYTES = 1 << 16


class BatchMemory:
    """Allocates slots of a queue's arena to mini-batches and to the announcement of their layout.

    Attributes:
        layout: layout of the rows; ``None`` until the first sample is made.
    """

    def __init__(
        self, options: ManagerOptions, arena: Arena, queue: _native.ManagerQueue, most: int
    ) -> None:
        """``most`` is the largest number of published mini-batches."""
        self._options = options
        self._delivery = options.delivery
        writers = (each for each in options.participants if each.device_buffers)
        self._writer: Participant | None = next(writers, None)  # writes into device buffers
        self._copies: QueueCopies | None = None
        self._queue = queue
        self._descriptors = SlotPool(arena, queue, spare=most)
        self._rows = SlotPool(arena, queue, options.in_flight + 2, options.page_locking)
        self.layout: Layout | None = None
        self._announcement: Slot | None = None  # holds the pickled layout, for workers
        self._most_in_flight: int | None = None
        self._limit_bytes = 0
        self._whole_bytes = 0  # of the largest whole batch so far, with some to spare

    def totals(self) -> dict[str, int | float]:
        """Returns the fields of ``WorkerTotals`` that were counted here."""
        copies, receiver = self._copies, self._options.receiver
        slots = self._rows if receiver is None else receiver.slots
        for_others = 0 if receiver is None else self._rows.peak_bytes
        return {
            "slots": slots.count,
            "shared_memory_bytes": slots.peak_bytes + for_others,
            "shared_memory_limit_bytes": self._limit_bytes,
            "copied_bytes": 0 if copies is None else copies.copied_bytes,
            "copy_seconds": 0.0 if copies is None else copies.copy_seconds,
        }

    def settle(self, layout: Layout, jobs: Iterable[Job]) -> None:
        """Announces the layout to workers, and gives rows to ``jobs`` that have none.

        Raises:
            SharedMemoryExhausted: there is too little memory. The layout stays unknown then.
        """
        pickled = pickle.dumps(layout)
        # Kept after an exception: workers may read this slot already.
        if self._announcement is None or self._announcement.nbytes < len(pickled):
            self._announcement = self._descriptors.acquire(len(pickled))
        for job in jobs:
            if job.payload is None:
                job.payload = self._acquire_rows(layout, job.batch)
            self._queue.set_payload(job.slot, job.payload.number)
        self._queue.announce_layout(self._announcement.number, pickled)
        self.layout = layout

    @property
    def most_in_flight(self) -> int:
        """Number of mini-batches that may be in flight.

        While their size is unknown, it is the least number that keeps all workers busy.
        """
        if self._most_in_flight is not None:
            return self._most_in_flight
        options = self._options
        samples = options.workers * options.tiny_batch_size
        return max(_FEWEST, -(-samples // max(options.batch_size, 1)))

    def allocate(self, job: Job) -> None:
        """Gives a mini-batch its slots; none for the rows while their layout is unknown."""
        if self.layout is not None:
            job.payload = self._acquire_rows(self.layout, job.batch)
        elif self._options.receiver is not None and self._queue.is_watched:
            job.payload = self._acquire_room()
        job.descriptor = self._descriptors.acquire(job.descriptor_bytes())

    def _acquire_rows(self, layout: Layout, batch: MiniBatch) -> Slot:
        rows = len(batch.items)
        nbytes = layout.batch_bytes(rows)
        if self._most_in_flight is None:
            self._most_in_flight = self._fitting(nbytes, rows)
            count = min(self._options.in_flight, self._most_in_flight) + 1
            what = f"{count} batches of {rows} samples in flight"
            objects.check_room(nbytes * count, what)
            self._rows.first = count
        return self._rows.acquire(max(nbytes, 1))

    def _acquire_room(self) -> Slot | None:
        """Returns a slot that a worker of another rank can write a whole mini-batch into.

        ``None`` while the size of batches is unknown, and where there is too little memory.
        """
        nbytes, rows = self._whole_bytes, self._rows
        with suppress(objects.SharedMemoryExhausted):
            slot = rows.recycle(nbytes) if nbytes else None
            if slot is not None or not nbytes:
                return slot
            limit = self._shared_limit()
            if rows.resident_bytes + nbytes > limit:
                rows.trim()  # the free ones are too small
            if rows.resident_bytes + nbytes <= limit:
                return rows.acquire(nbytes)
        return None

    def _shared_limit(self) -> int:
        limit = self._options.max_shared_bytes
        return objects.free() // 4 if limit is None else limit

    def release(self, job: Job) -> None:
        """Frees the slots of a mini-batch. Rows that are leased are freed with their owner."""
        self._stop_copying(job)
        if job.descriptor is not None:
            self._descriptors.release(job.descriptor)
        self._lease(job)
        payload = job.unleased(whole=self._options.receiver is not None)
        if payload is not None:
            self._rows.release(payload)
        if self._options.receiver is not None and job.owner is None and not job.returned:
            for packed in job.spilled.values():
                self._options.receiver.drop(unpickled(packed))
        job.owner = job.result = None

    def deliver_whole(self, job: Job) -> Batch:
        receiver = self._options.receiver
        assert receiver is not None
        if job.is_in_payload:
            packed = read_packed(self.deliver(job))
            return receiver.batch(packed, job.owner)
        packed = unpickled(job.spilled[0])
        if job.owner is None:
            job.owner = receiver.view(packed)
        self._lease(job)
        nbytes = len(job.spilled[0]) + (packed.where[2] if packed.where else 0)
        self._whole_bytes = max(self._whole_bytes, nbytes + _SPARE_BYTES)
        return receiver.batch(packed, job.owner)

    def deliver(self, job: Job) -> Memory:
        """Returns an owner of the mini-batch's rows. The slot is freed with the owner."""
        assert job.payload is not None
        self._stop_copying(job)
        return self._rows_of(job)

    def _rows_of(self, job: Job) -> Memory:
        if job.owner is None:
            assert job.payload is not None
            job.owner = self._rows.view(job.payload)
        self._lease(job)
        return job.owner

    def _lease(self, job: Job) -> None:
        """Has the memory of a batch freed with its owner, which ``job`` keeps until delivery."""
        receiver = self._options.receiver
        slots = receiver.slots if receiver is not None and job.spilled else self._rows
        if job.owner is not None:
            slots.lease(job.owner)

    def _fitting(self, nbytes: int, rows: int) -> int:
        """Returns how many mini-batches of ``nbytes`` each may be in flight."""
        self._limit_bytes = limit = self._shared_limit()
        fitting = max(limit // max(nbytes, 1), _FEWEST)
        if fitting < self._options.in_flight:
            log.info(
                "%d mini-batches of %d samples in flight, not %d: they take %s each, of at most %s "
                "(max_shared_bytes)",
                *(fitting, rows, self._options.in_flight),
                *(mib(nbytes), mib(limit)),
            )
        return fitting

    # ---- on the device -------------------------------------------------------------------------

    def shared_buffers(self) -> list[BufferOpener]:
        """Returns openers of the device buffers, for the participant that writes into them."""
        if self._delivery is None or self._writer is None:
            return []
        assert self.layout is not None
        nbytes = self._open_copies().shared_bytes(self.layout, self._options.batch_size)
        writer = self._writer
        return self._delivery.ring.share(writer.device_buffers, nbytes, writer.in_thread)

    def without_writer(self, participants: Sequence[Participant]) -> list[Participant]:
        writer, self._writer = self._writer, None
        return [each for each in participants if each is not writer]

    def _open_copies(self) -> QueueCopies:
        assert self._delivery is not None
        if self._copies is None:
            number = None if self._writer is None else self._writer.first
            self._copies = self._delivery.open(self._queue, number, self._options.conversion)
        return self._copies

    def begin_copies(self, jobs: Iterable[Job]) -> None:
        """Begins to copy the oldest mini-batches to the device while workers make them."""
        if self._delivery is None or self.layout is None:
            return
        wanted = [
            job for job in jobs if not (job.discarded or job.taken) and job.payload is not None
        ]
        for place, job in enumerate(wanted[:_ON_THE_WAY]):
            try:
                if job.copying is None and not self._begin_copying(job, first=place == 0):
                    return
            except torch.OutOfMemoryError:
                return  # delivery tries again

    def _begin_copying(self, job: Job, first: bool) -> bool:
        """Returns whether the copy has begun. The ``first`` one begins even without a buffer."""
        assert self._delivery is not None and self.layout is not None and job.payload is not None
        copies, ring, rows = self._open_copies(), self._delivery.ring, len(job.rows)
        # After an exception in the delivery, the one that the GPU worker has written into.
        before = None if job.copying is None else job.copying.buffer
        buffer = before
        if self._writer is not None and buffer is None:
            buffer = ring.acquire(copies.shared_bytes(self.layout, rows))
            if buffer is None and not first:
                return False  # tried again: with a buffer, the GPU worker can take part
        try:
            job.copying = copies.begin(job.slot, self.layout, rows, job.payload.address, buffer)
        except BaseException as error:
            if not isinstance(error, torch.OutOfMemoryError):  # no copy has begun then
                self._wait_for_lost_copies()
            if buffer is not None and buffer is not before:
                ring.put_back(buffer)
            raise
        if buffer is not None:
            self._queue.set_gpu_rows(job.slot, buffer.number + 1)
        return True

    def deliver_on_device(self, job: Job) -> Arriving:
        """Returns the device batch of a mini-batch that is done and complete in its rows."""
        assert self._delivery is not None and job.payload is not None
        if job.copying is None or job.copying.ticket is None:
            self._begin_copying(job, first=True)
        copying = job.copying
        assert copying is not None
        try:
            arriving = self._delivery.arriving(self._open_copies(), copying, self._rows_of(job))
        except BaseException:
            copying.ticket = None  # the next call copies anew
            self._wait_for_lost_copies()
            raise
        job.copying, job.arriving = None, arriving
        return arriving

    def _wait_for_lost_copies(self) -> None:
        """Waits for copies after an exception, since nothing keeps the rows that they read.

        Workers would write the next mini-batch there, and a device run programs that are half old.
        """
        assert self._delivery is not None
        with suppress(RuntimeError):  # a device that has failed reads nothing more
            wait_for_copies(self._delivery.device)

    def _stop_copying(self, job: Job) -> None:
        """Cancels the copy of a mini-batch, and waits until nothing reads its slot."""
        if job.copying is not None:
            copying, job.copying = job.copying, None
            self._open_copies().cancel(copying)

    def close(self, jobs: Iterable[Job]) -> None:
        """Ends the copies, also of ``jobs``, which will not be delivered."""
        if self._copies is not None:
            self._copies.close()
            for job in jobs:
                with suppress(RuntimeError):  # a device that has failed copies nothing more
                    self._stop_copying(job)
