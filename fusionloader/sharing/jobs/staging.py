"""The staging area: one queue for the workers of all jobs, and the slots of its mini-batches."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from copy import copy
from dataclasses import dataclass, field
from functools import partial

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.engine.manager.publications import MiniBatch, OpenPublications, PublishedBatch
from fusionloader.sharing.jobs.member import EpochKey
from fusionloader.sharing.jobs.sample_lists import SampleLists
from fusionloader.sharing.jobs.worker_records import MOST_WORKERS, WorkerRecord, WorkerRecords
from fusionloader.system.processes import is_stopped
from fusionloader.system.shm import objects
from fusionloader.system.shm.objects import SharedMemoryExhausted
from fusionloader.system.shm.slots import Arena, Slot, SlotPool
from fusionloader.workers import messages

RING = 256  # most mini-batches that are staged at a time, of all epochs
_SPARE = 16  # free slots that keep their memory
_ALIGN = 64  # bytes


@dataclass(frozen=True, slots=True)
class RowSettings:
    """What is the same in all mini-batches of a group.

    Attributes:
        tiny_size: samples in a tiny-batch.
        group_size: number of neighbouring samples that share random draws, 0 if they do not.
        leaves: bytes of a row in each block; none if workers make whole batches, of any size.
    """

    tiny_size: int
    group_size: int
    leaves: tuple[int, ...]

    def nbytes(self, rows: int) -> int:
        """Returns the bytes of a mini-batch, as ``Layout.batch_bytes``, which imports torch."""
        return sum(-(-leaf * rows // _ALIGN) * _ALIGN for leaf in self.leaves)


@dataclass(slots=True, eq=False, kw_only=True)
class StagedBatch(PublishedBatch):
    """A published mini-batch, under way or complete.

    Attributes:
        key: the epoch.
        wanted: bytes that a worker needs for the batch that it has made whole, 0 if it has them.
        lack: why there was no memory for ``wanted`` bytes at the last attempt.
        held: tiny-batch and worker of each claim at the last check.
        given_up: tiny-batches that were given up, each with the pid of the last dead worker.
        made: number of samples, by the pid of the job whose workers made them, once complete.
        failed: number of tiny-batches that failed, once complete.
        done: whether it is complete.
    """

    key: EpochKey
    wanted: int = 0
    lack: str = ""
    held: frozenset[tuple[int, int]] = frozenset()
    given_up: list[tuple[int, int | None]] = field(default_factory=list)
    made: Counter[int] = field(default_factory=Counter)
    failed: int = 0
    done: bool = False

    def give_up(self, tiny_batch: int, pid: int | None, manner: str) -> None:
        self.given_up.append((tiny_batch, pid))  # each job names its samples itself


@dataclass(frozen=True, slots=True)
class _Quarantined:
    """A mini-batch whose slots workers may still write to.

    ``writers`` has these workers by number, ``None`` for one that is not registered yet.
    """

    batch: StagedBatch
    writers: dict[int, WorkerRecord | None]


class Staging:
    """Publishes mini-batches, finds those that are complete, and recycles slots.

    Attributes:
        settings: properties of the rows, which the first member sets.
        largest: size of the largest mini-batch until now, in bytes.
    """

    def __init__(self, workers: WorkerRecords) -> None:
        self._workers = workers
        self._arena = Arena()
        self._control = objects.ControlBlock(MOST_WORKERS, RING)
        self.queue = _native.ManagerQueue(*self.fds, MOST_WORKERS, RING)
        self._descriptors = SlotPool(self._arena, self.queue, spare=RING)
        self._rows = SlotPool(self._arena, self.queue, spare=_SPARE)
        self.settings: RowSettings | None = None
        self.largest = 0
        self._batches: OpenPublications[StagedBatch] = OpenPublications(self.queue, RING)
        self._quarantined: list[_Quarantined] = []

    @property
    def fds(self) -> tuple[int, int]:
        """The descriptors of the control block and of the slots."""
        return self._control.fd, self._arena.fd

    @property
    def busy(self) -> bool:
        """Whether mini-batches are incomplete or slots quarantined."""
        return bool(self._batches or self._quarantined)

    @property
    def capacity(self) -> int:
        """Number of mini-batches that the queue can still take."""
        return self._batches.ring_room - 1

    # ---- publishing ----------------------------------------------------------------------------

    def publish(self, key: EpochKey, number: int, samples: SampleLists) -> StagedBatch:
        """Has workers prepare a mini-batch.

        Raises:
            SharedMemoryExhausted: there is no memory for its rows.
        """
        assert self.settings is not None
        items, keys, occurrences, rows, pickled = samples
        lists = items, keys, occurrences, rows
        mini_batch = MiniBatch(number, [], *lists, key.seed, key.epoch, pickled)
        size, sequence = self.settings.tiny_size, self.queue.published
        batch = StagedBatch(batch=mini_batch, tiny_size=size, key=key, sequence=sequence)
        self._describe(batch)
        self._batches.publish(batch)
        return batch

    def _describe(self, batch: StagedBatch) -> None:
        """Gives a mini-batch new slots, and describes it there."""
        assert self.settings is not None
        batch.descriptor, batch.payload = self._acquire(batch)
        batch.describe(self.queue, self.settings.group_size)

    def _acquire(self, batch: StagedBatch) -> tuple[Slot, Slot | None]:
        """Returns slots for the descriptor and the rows.

        The first whole batches have none for rows: a worker says how much it needs.
        """
        assert self.settings is not None
        if self.settings.leaves:
            nbytes = max(self.settings.nbytes(len(batch.rows)), 1)
            self.largest = max(self.largest, nbytes)
        else:
            nbytes = self.largest
        rows = self._rows.acquire(nbytes) if nbytes else None
        try:
            return self._descriptors.acquire(batch.descriptor_bytes()), rows
        except BaseException:
            if rows is not None:
                self._rows.release(rows)
            raise

    def _provide(self, batch: StagedBatch) -> None:
        """Gives a whole batch the slot that its worker waits for; a later call tries again."""
        try:
            rows = self._rows.acquire(batch.wanted)
        except SharedMemoryExhausted as error:
            batch.lack = str(error)
            return
        self.largest, batch.wanted = max(self.largest, batch.wanted), 0
        if batch.payload is not None:
            self._rows.release(batch.payload)
        batch.payload = rows
        self.queue.set_payload(batch.slot, rows.number)
        self.queue.search(batch.slot)  # wakes the worker

    def lacking(self) -> list[StagedBatch]:
        """Returns the mini-batches whose workers wait for memory."""
        return [batch for batch in self._batches if batch.wanted]

    # ---- what workers have done ----------------------------------------------------------------

    def completed(self) -> list[StagedBatch]:
        """Returns the mini-batches that have become complete, with all of their reports."""
        done = [batch for batch in self._batches if self.queue.status(batch.slot).done]
        if not done:
            return done
        self.receive()  # workers send reports before they change the states
        for batch in done:
            self._finish(batch)
            self._batches.take_out(batch)
        return done

    def _finish(self, batch: StagedBatch) -> None:
        batch.done, batch.failed = True, self.queue.status(batch.slot).failed
        whole = self.queue.in_state(batch.slot, TinyBatchState.SPILLED)
        for done in [*self.queue.in_state(batch.slot, TinyBatchState.COMPLETED), *whole]:
            batch.failures.pop(done.tiny_batch, None)  # reported about slots that were replaced
            record = self._workers.find(done.worker)
            pid = 0 if record is None else record.member.pid
            batch.made[pid] += len(batch.rows_of(done.tiny_batch))

    def receive(self) -> None:
        """Reads the workers' messages."""
        self._workers.handle(self._note)

    def _note(self, record: WorkerRecord, message: messages.Message) -> None:
        if isinstance(message, messages.SlotWanted):
            self._note_wanted(record, message)
        elif isinstance(message, messages.JobMessage):
            batch = self._batches.find(message.sequence)
            if batch is not None and self._is_about(batch, record, message):
                batch.note(message)
        else:
            record.member.reply({"reported": True}, pickle.dumps(message))

    def _is_about(
        self, batch: StagedBatch, record: WorkerRecord, message: messages.JobMessage
    ) -> bool:
        """Whether a whole batch lies in the present slots, and not in some that were replaced."""
        if not isinstance(message, messages.SamplesSpilled):
            return True
        # First what it holds: the worker may finish it between the two calls.
        held = self._holders(batch)
        whole = self.queue.in_state(batch.slot, TinyBatchState.SPILLED)
        return record.number in held | {each.worker for each in whole}

    def _holders(self, batch: StagedBatch) -> set[int]:
        """Returns the workers that hold tiny-batches."""
        return {each.worker for each in self.queue.in_state(batch.slot, TinyBatchState.ACTIVE)}

    def _note_wanted(self, record: WorkerRecord, message: messages.SlotWanted) -> None:
        """Gives the worker that waits for it a slot, even if the batch is not needed any more."""
        old = [entry.batch for entry in self._quarantined]
        for batch in [*self._batches, *old]:
            if batch.sequence != message.sequence or record.number not in self._holders(batch):
                continue
            if batch.payload is None or batch.payload.nbytes < message.nbytes:
                batch.wanted = message.nbytes  # else a worker may write to the slot that it has
                self._provide(batch)

    # ---- workers that have ended, or are stopped -----------------------------------------------

    def recover(self, record: WorkerRecord) -> None:
        """Takes back the claims of a worker that has ended."""
        record.receiver.handle(partial(self._note, record))
        self._workers.remove(record)
        for batch in [*self._batches, *(entry.batch for entry in self._quarantined)]:
            if record.number in self._holders(batch):
                batch.wanted = 0  # the next worker asks itself, once it knows what it needs
        self._batches.give_back(record.number, self.queue.worker(record.number).pid, "died")

    def look_for_stopped(self) -> None:
        """Publishes mini-batches again in which a stopped worker holds a tiny-batch.

        The same if the worker's job has left the group and the worker makes no progress. A claim
        that was there at the last call, too, counts as held for long.
        """
        for batch in [*self._batches, *(entry.batch for entry in self._quarantined)]:
            if batch.wanted:
                self._provide(batch)
        for batch in self._batches:
            found = self.queue.in_state(batch.slot, TinyBatchState.ACTIVE)
            held = {(each.tiny_batch, each.worker) for each in found}
            for _, number in held & batch.held:
                record = self._workers.find(number)
                if record is not None and (self._is_stopped(record) or not record.member.joined):
                    with contextlib.suppress(SharedMemoryExhausted):  # the next call tries again
                        self._replace(batch)
                        held = set()
                    break
            batch.held = frozenset(held)
        self._search()
        self._collect()

    def _search(self) -> None:
        """Finds tiny-batches that were skipped by a worker stopped in the middle of a claim."""
        oldest = next(iter(self._batches), None)
        if oldest is not None and not oldest.held and self.queue.status(oldest.slot).waiting:
            self.queue.search(oldest.slot)

    def _is_stopped(self, record: WorkerRecord) -> bool:
        return is_stopped(self.queue.worker(record.number).pid)

    def _replace(self, batch: StagedBatch) -> None:
        """Publishes a mini-batch again in new slots, which the stopped worker does not write to."""
        old = copy(batch)
        self._describe(batch)
        self.queue.replace(old.slot, batch.slot, batch.sequence)
        batch.failures, batch.skipped, batch.spilled, batch.given_up = {}, {}, {}, []
        batch.wanted = 0
        self._quarantine(old)

    def _quarantine(self, batch: StagedBatch) -> None:
        writers = {number: self._workers.find(number) for number in self._holders(batch)}
        self._quarantined.append(_Quarantined(batch, writers))

    def _collect(self) -> None:
        """Releases quarantined slots that no worker can write to any more."""
        for entry in list(self._quarantined):
            # Tiny-batches that a worker has given back since must not be claimed again.
            self.queue.withdraw_one(entry.batch.slot, entry.batch.sequence)
            if not any(self._may_write(entry, number) for number in self._holders(entry.batch)):
                self._quarantined.remove(entry)
                self._release(entry.batch)

    def _may_write(self, entry: _Quarantined, worker: int) -> bool:
        writer = entry.writers.get(worker)
        if writer is None:
            writer = entry.writers[worker] = self._workers.find(worker)
        return writer is None or not writer.dead  # one that is not registered yet may be alive

    # ---- recycling -----------------------------------------------------------------------------

    def recycle(self, batch: StagedBatch) -> None:
        """Releases the slots of a mini-batch, which may be incomplete."""
        if batch.done:
            self._release(batch)
            return
        self.queue.withdraw_one(batch.slot, batch.sequence)
        self._batches.take_out(batch)
        self._quarantine(batch)
        self._collect()

    def _release(self, batch: StagedBatch) -> None:
        assert batch.descriptor is not None
        self._descriptors.release(batch.descriptor)
        if batch.payload is not None:
            self._rows.release(batch.payload)

    def close(self) -> None:
        """Stops the queue, which ends its workers, and closes the descriptors."""
        self.queue.stop()
        self._arena.close()
        self._control.close()
