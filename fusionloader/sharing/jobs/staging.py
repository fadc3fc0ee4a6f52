"""The staging area: one queue for the workers of all jobs, and the slots of its mini-batches."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import dataclass, field

from fusionloader import _native
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
_MOST_DEATHS = 3
_ALIGN = 64  # bytes


@dataclass(frozen=True, slots=True)
class RowSettings:
    """What is the same in all mini-batches of a group.

    Attributes:
        tiny_size: samples in a tiny-batch.
        group_size: number of neighbouring samples that share random draws, 0 if they do not.
        leaves: bytes of a row in each block.
    """

    tiny_size: int
    group_size: int
    leaves: tuple[int, ...]

    def nbytes(self, rows: int) -> int:
        """Returns the bytes of a mini-batch, as ``Layout.batch_bytes``, which imports torch."""
        return sum(-(-leaf * rows // _ALIGN) * _ALIGN for leaf in self.leaves)


@dataclass(slots=True, eq=False)
class StagedBatch:
    """A published mini-batch, under way or complete.

    Attributes:
        key: the epoch.
        number: position in the epoch.
        samples: the samples, as workers need them.
        sequence: number in the queue, which workers' reports refer to.
        descriptor: slot that describes the mini-batch to workers.
        rows: slot with the results.
        reports: the workers' messages about it.
        held: tiny-batch and worker of each claim at the last check.
        deaths: number of workers that died, by tiny-batch.
        given_up: tiny-batches that were given up, each with the pid of the last dead worker.
        made: number of samples, by the pid of the job whose workers made them, once complete.
        failed: number of tiny-batches that failed, once complete.
        done: whether it is complete.
    """

    key: EpochKey
    number: int
    samples: SampleLists
    sequence: int
    descriptor: Slot
    rows: Slot
    reports: list[messages.JobMessage] = field(default_factory=list)
    held: frozenset[tuple[int, int]] = frozenset()
    deaths: Counter[int] = field(default_factory=Counter)
    given_up: list[tuple[int, int]] = field(default_factory=list)
    made: Counter[int] = field(default_factory=Counter)
    failed: int = 0
    done: bool = False

    def find_tiny_batch(self, report: messages.JobMessage, size: int) -> int:
        """Returns the tiny-batch, of ``size`` samples, that a report is about."""
        if isinstance(report, messages.TinyBatchFailed):
            return report.failure.position // size
        if isinstance(report, messages.SampleSkipped):
            return self.samples.rows.index(report.row) // size
        return report.tiny_batch


@dataclass(frozen=True, slots=True)
class _Quarantined:
    """Slots of a mini-batch that workers may still write to.

    ``writers`` has these workers by number, ``None`` for one that is not registered yet.
    """

    sequence: int
    descriptor: Slot
    rows: Slot
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
        self.control_fd = objects.create_queue(MOST_WORKERS, RING)
        self.queue = _native.ManagerQueue(self.control_fd, self._arena.fd, MOST_WORKERS, RING)
        self._descriptors = SlotPool(self._arena, self.queue, spare=RING)
        self._rows = SlotPool(self._arena, self.queue, spare=_SPARE)
        self.settings: RowSettings | None = None
        self.largest = 0
        self._sequence = 0
        self._batches: dict[int, StagedBatch] = {}  # incomplete ones, by sequence
        self._quarantined: list[_Quarantined] = []

    @property
    def data_fd(self) -> int:
        return self._arena.fd

    @property
    def busy(self) -> bool:
        """Whether mini-batches are incomplete or slots quarantined."""
        return bool(self._batches or self._quarantined)

    @property
    def capacity(self) -> int:
        """Number of mini-batches that the queue can still take."""
        oldest = min(self._batches, default=self._sequence)
        return RING - (self._sequence - oldest) - 1

    # ---- publishing ----------------------------------------------------------------------------

    def publish(self, key: EpochKey, number: int, samples: SampleLists) -> StagedBatch:
        """Has workers prepare a mini-batch.

        Raises:
            SharedMemoryExhausted: there is no memory for its rows.
        """
        descriptor, rows = self._acquire(samples)
        batch = StagedBatch(key, number, samples, self._sequence, descriptor, rows)
        self._describe(batch)
        self.queue.publish(descriptor.number, batch.sequence)
        self._batches[batch.sequence] = batch
        self._sequence += 1
        return batch

    def _acquire(self, samples: SampleLists) -> tuple[Slot, Slot]:
        assert self.settings is not None
        count = len(samples.items)
        tiny_batches = -(-count // self.settings.tiny_size)
        nbytes_of_descriptor = _native.ManagerQueue.descriptor_bytes(count, tiny_batches)
        nbytes = max(self.settings.nbytes(count), 1)
        self.largest = max(self.largest, nbytes)
        rows = self._rows.acquire(nbytes)
        try:
            return self._descriptors.acquire(nbytes_of_descriptor), rows
        except BaseException:
            self._rows.release(rows)
            raise

    def _describe(self, batch: StagedBatch) -> None:
        assert self.settings is not None
        self.queue.describe(
            batch.descriptor.number,
            sequence=batch.sequence,
            rows=batch.samples.rows,
            items=batch.samples.items,
            keys=batch.samples.keys,
            occurrences=batch.samples.occurrences,
            tiny_size=self.settings.tiny_size,
            seed=batch.key.seed,
            epoch=batch.key.epoch,
            number=batch.number,
            group_size=self.settings.group_size,
            payload=batch.rows.number,
        )

    # ---- what workers have done ----------------------------------------------------------------

    def completed(self) -> list[StagedBatch]:
        """Returns the mini-batches that have become complete, with all of their reports."""
        done = [b for b in self._batches.values() if self.queue.status(b.descriptor.number).done]
        if not done:
            return done
        self.receive()  # workers send reports before they change the states
        for batch in done:
            batch.done, batch.made = True, self._made_by(batch)
            self._drop_outdated_reports(batch)
            del self._batches[batch.sequence]
        self.queue.deliver_until(min(self._batches, default=self._sequence))
        return done

    def receive(self) -> None:
        """Reads the workers' messages."""
        self._workers.handle(self._note)

    def _note(self, message: messages.Message) -> None:
        if isinstance(message, messages.JobMessage):
            batch = self._batches.get(message.sequence)
            if batch is not None:
                batch.reports.append(message)

    def _drop_outdated_reports(self, batch: StagedBatch) -> None:
        """Drops failures of tiny-batches that were completed since, and counts the others."""
        assert self.settings is not None
        size, slot = self.settings.tiny_size, batch.descriptor.number
        completed = {done.tiny_batch for done in self.queue.completed(slot)}
        batch.failed = self.queue.status(slot).failed
        batch.reports = [
            report
            for report in batch.reports
            if not isinstance(report, messages.TinyBatchFailed)
            or batch.find_tiny_batch(report, size) not in completed
        ]

    def _made_by(self, batch: StagedBatch) -> Counter[int]:
        assert self.settings is not None
        made: Counter[int] = Counter()
        size, count = self.settings.tiny_size, len(batch.samples.items)
        for done in self.queue.completed(batch.descriptor.number):
            record = self._workers.find(done.worker)
            pid = 0 if record is None else record.member.pid
            made[pid] += min(size, count - done.tiny_batch * size)
        return made

    # ---- workers that have ended, or are stopped -----------------------------------------------

    def recover(self, record: WorkerRecord) -> None:
        """Takes back the claims of a worker that has ended."""
        assert self.settings is not None
        pid = self.queue.worker(record.number).pid
        record.receiver.handle(self._note)
        self._workers.remove(record)
        hopeless = [  # given up if their worker has died once more
            (sequence, tiny_batch)
            for sequence, batch in self._batches.items()
            for tiny_batch, deaths in batch.deaths.items()
            if deaths >= _MOST_DEATHS - 1
        ]
        for lost in self.queue.take_back(record.number, hopeless):
            batch = self._batches.get(lost.sequence)
            if batch is None:
                continue
            batch.deaths[lost.tiny_batch] += 1
            # The whole tiny-batch is done again, so earlier reports about it are void.
            batch.reports = [
                report
                for report in batch.reports
                if batch.find_tiny_batch(report, self.settings.tiny_size) != lost.tiny_batch
            ]
            if lost.given_up:
                batch.given_up.append((lost.tiny_batch, pid))

    def look_for_stopped(self) -> None:
        """Publishes mini-batches again in which a stopped worker holds a tiny-batch.

        The same if the worker's job has left the group and the worker makes no progress. A claim
        that was there at the last call, too, counts as held for long.
        """
        for batch in list(self._batches.values()):
            held = {(h.tiny_batch, h.worker) for h in self.queue.held(batch.descriptor.number)}
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
        oldest = next(iter(self._batches.values()), None)
        if oldest is None or oldest.held:
            return
        if self.queue.status(oldest.descriptor.number).waiting:
            self.queue.search(oldest.descriptor.number)

    def _is_stopped(self, record: WorkerRecord) -> bool:
        return is_stopped(self.queue.worker(record.number).pid)

    def _replace(self, batch: StagedBatch) -> None:
        """Publishes a mini-batch again in new slots, which the stopped worker does not write to."""
        old = batch.descriptor, batch.rows
        batch.descriptor, batch.rows = self._acquire(batch.samples)
        self._describe(batch)
        self.queue.replace(old[0].number, batch.descriptor.number, batch.sequence)
        batch.reports, batch.given_up = [], []
        self._quarantine(batch.sequence, *old)

    def _quarantine(self, sequence: int, descriptor: Slot, rows: Slot) -> None:
        held = self.queue.held(descriptor.number)
        writers = {each.worker: self._workers.find(each.worker) for each in held}
        self._quarantined.append(_Quarantined(sequence, descriptor, rows, writers))

    def _collect(self) -> None:
        """Releases quarantined slots that no worker can write to any more."""
        for entry in list(self._quarantined):
            # Tiny-batches that a worker has given back since must not be claimed again.
            self.queue.withdraw_one(entry.descriptor.number, entry.sequence)
            held = self.queue.held(entry.descriptor.number)
            if not any(self._may_write(entry, each.worker) for each in held):
                self._quarantined.remove(entry)
                self._release(entry.descriptor, entry.rows)

    def _may_write(self, entry: _Quarantined, worker: int) -> bool:
        writer = entry.writers.get(worker)
        if writer is None:
            writer = entry.writers[worker] = self._workers.find(worker)
        return writer is None or not writer.dead  # one that is not registered yet may be alive

    # ---- recycling -----------------------------------------------------------------------------

    def recycle(self, batch: StagedBatch) -> None:
        """Releases the slots of a mini-batch, which may be incomplete."""
        if batch.done:
            self._release(batch.descriptor, batch.rows)
            return
        self.queue.withdraw_one(batch.descriptor.number, batch.sequence)
        del self._batches[batch.sequence]
        self.queue.deliver_until(min(self._batches, default=self._sequence))
        self._quarantine(batch.sequence, batch.descriptor, batch.rows)
        self._collect()

    def _release(self, descriptor: Slot, rows: Slot) -> None:
        self._descriptors.release(descriptor)
        self._rows.release(rows)

    def close(self) -> None:
        """Stops the queue, which ends its workers, and closes the descriptors."""
        self.queue.stop()
        self._arena.close()
        os.close(self.control_fd)
