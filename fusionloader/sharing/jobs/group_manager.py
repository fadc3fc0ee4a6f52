"""The manager of a job's mini-batches while a group prepares them.

Mini-batches are submitted to the coordinator, which says when they are complete. If the job has to
go on alone, ``next_done`` and ``take_done`` raise ``LeftGroup``; a ``LocalManager`` then prepares
the mini-batches in flight.
"""

from __future__ import annotations

import logging
import os
import pickle
from typing import Any

import torch

from fusionloader.data.deferred.counts import Counts
from fusionloader.engine.manager.in_flight import Job, Jobs
from fusionloader.engine.manager.manager import Manager
from fusionloader.engine.manager.options import ManagerOptions, StartWorker
from fusionloader.engine.manager.publications import MiniBatch
from fusionloader.engine.manager.stalls import HungWorkers, StallWatch
from fusionloader.observe.statistics.worker_totals import WorkerTotals
from fusionloader.observe.trace.recorder import Recorder
from fusionloader.options.aliases import Batch
from fusionloader.sharing.jobs.connection import PreparedBatch
from fusionloader.sharing.jobs.group_memory import GroupMemory
from fusionloader.sharing.jobs.group_workers import GroupWorkers
from fusionloader.sharing.jobs.membership import GroupMembership
from fusionloader.sharing.jobs.sample_lists import SampleLists, pack
from fusionloader.system.processes import Process, refuse_in_child
from fusionloader.transforms.executors.batch_transport import BatchReceiver, unpickled
from fusionloader.transforms.executors.layout import Layout, Memory
from fusionloader.workers import messages
from fusionloader.workers.sample_errors import raise_failure

log = logging.getLogger("fusionloader.coordinated")

_SLEEP_SECONDS = 0.1


class GroupInFlight(Jobs):
    """Mini-batches that were submitted; the coordinator says which are complete."""

    def __init__(self, membership: GroupMembership) -> None:
        super().__init__()
        self._connection = membership.connection

    def is_done(self, job: Job) -> bool:
        return self._connection.is_prepared(job.number)


class GroupTrace:
    """A trace without workers: these work for several jobs, so they are in no job's trace."""

    def begin(self, recorder: Recorder, iterator: int) -> None:
        recorder.notes.append(
            "workers of several jobs prepare the mini-batches: they are not shown"
        )

    def end(self) -> None:
        pass


class GroupManager(Manager):
    """Submits mini-batches to the coordinator and hands out those that are complete.

    Attributes:
        connection: the connection to the coordinator.
    """

    def __init__(
        self,
        options: ManagerOptions,
        layout: Layout | None,
        start: StartWorker,
        membership: GroupMembership,
        deferred: Counts,
    ) -> None:
        """``start`` starts a worker process; ``deferred`` counts the deferred images."""
        self._deferred = deferred
        self._options = options
        self._pid = os.getpid()
        self._membership, self.connection = membership, membership.connection
        self._layout = layout
        self.closed = False
        self.in_flight = GroupInFlight(membership)
        self.trace = GroupTrace()
        page_locked = options.page_locking is not None
        self._memory = GroupMemory(membership.data_fd, self.connection, page_locked)
        self._most_in_flight = options.in_flight
        self._workers = GroupWorkers(options, membership, start)
        what = f"a mini-batch of share={membership.word!r}"
        self._hung = HungWorkers(self._workers, options.stall_timeout, lambda _: what)

    def resize(self, count: int) -> None:
        self._workers.resize(count)
        if self._workers.count < count:
            log.warning("this job goes on with %d workers: no room for more", self._workers.count)
        per_worker = self._options.in_flight / self._options.workers
        self._most_in_flight = max(int(per_worker * self._workers.count), 1)

    @property
    def layout(self) -> Layout | None:
        return self._layout

    # ---- publishing ----------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        return self._most_in_flight - len(self.in_flight.wanted)

    @property
    def capacity(self) -> int:
        return self.ahead  # the coordinator, not this job, waits for memory

    def submit(self, batch: MiniBatch) -> None:
        lists = batch.items, batch.keys, batch.occurrences, batch.rows
        samples = SampleLists(*lists, batch.pickled)
        # After an exception behind this line it is submitted again, which changes nothing.
        self.connection.submit(batch.number, pack(samples))
        size, name = self._options.tiny_batch_size, self._options.name
        self.in_flight.jobs += [Job(batch, size, name=name, sequence=batch.number)]

    # ---- waiting -------------------------------------------------------------------------------

    def next_done(self, in_order: bool) -> Job:
        """Waits for the oldest mini-batch, or with ``in_order=False`` for any, and takes it.

        Raises:
            LeftGroup: the job has to go on alone.
            RuntimeError: after ``timeout`` seconds, or when workers cannot be started or ended.
            ValueError: the first mini-batch differs from that of the other jobs.
        """
        watch, timeout, waited = StallWatch(), self._options.timeout, False
        while True:
            job = self.take_done(in_order)
            if job is not None:
                return job
            self._workers.look()
            self._hung.look()
            # Leases that training has just released go with the next mini-batch, to save a message.
            self.connection.flush(also_released=waited)
            waited = True
            if timeout and watch.waited >= timeout:
                what = f"DataLoader timed out after {timeout} seconds."
                raise RuntimeError(f"{what} {self._report()}")
            watch.check(self._report)
            self.connection.receive(min(_SLEEP_SECONDS, timeout / 4 or _SLEEP_SECONDS))

    def take_done(self, in_order: bool) -> Job | None:
        refuse_in_child(self._pid)
        self.connection.receive(0.0)
        self._handle_reported()
        self._membership.check()
        job = self.in_flight.done(in_order)
        if job is not None:
            self._note_reports(job)
            job.taken = True
        return job

    def _handle_reported(self) -> None:
        """Handles messages of this job's workers that concern no mini-batch."""
        while self.connection.reported:
            message = self.connection.reported[0]
            del self.connection.reported[0]
            if isinstance(message, messages.ImagesDeferred):
                self._deferred.add(message.counts)
            elif isinstance(message, messages.WorkerFailed):
                raise_failure(message.failure)

    def _note_reports(self, job: Job) -> None:
        found = self.connection.prepared(job.number)
        job.failures, job.skipped, job.spilled = found.reports
        for tiny_batch, pid in found.given_up:
            job.give_up(tiny_batch, pid, "died")
        if len(job.failures) < found.failed:
            job.failures[-1] = self._unexplained(job, found)

    def _unexplained(self, job: Job, found: PreparedBatch) -> messages.Failure:
        text = (
            f"mini-batch {job.number} of share={self._membership.word!r} has {found.failed} "
            f"tiny-batches that failed, and workers have reported {len(job.failures)}: it is left "
            "out, and the epoch goes on behind it. Please report this"
        )
        return messages.Failure(pickle.dumps(RuntimeError), text, 0)

    def _report(self) -> str:
        jobs = self.connection.jobs
        return (
            f"share={self._membership.word!r}: {len(self.in_flight.wanted)} mini-batches are "
            f"submitted, none is done; others in the group: {', '.join(map(str, jobs)) or 'none'}."
        )

    # ---- delivery ------------------------------------------------------------------------------

    def deliver(self, job: Job) -> Memory:
        """Returns the memory of a mini-batch's rows; other jobs do not see changes of it."""
        if job.owner is None:
            job.owner = self._memory.get_memory(self.connection.prepared(job.number))
        if self.connection.is_prepared(job.number):
            self._memory.deliver(self.connection.prepared(job.number), job.owner)
            self.connection.take(job.number)
        return job.owner

    def deliver_whole(self, job: Job) -> Batch:
        """Returns a mini-batch that a worker has made whole; other jobs see no changes of it."""
        packed = unpickled(job.spilled[0])
        memory = self.deliver(job) if packed.needs_slot else None
        owner: Any = memory.numpy() if isinstance(memory, torch.Tensor) else memory
        batch = BatchReceiver.batch(packed, owner)
        if memory is None and self.connection.is_prepared(job.number):
            self._memory.release(self.connection.prepared(job.number))
            self.connection.take(job.number)
        return batch

    def release(self, job: Job) -> None:
        self.in_flight.jobs.remove(job)
        if self.connection.is_prepared(job.number):
            self._memory.release(self.connection.prepared(job.number))
            self.connection.take(job.number)

    # ---- ending --------------------------------------------------------------------------------

    def discard(self) -> None:
        self._membership.end_epoch(finished=False)
        self.in_flight.jobs.clear()

    def receive_deferred(self) -> None:
        self.connection.receive(0.0)
        self._handle_reported()

    def totals(self) -> WorkerTotals:
        in_flight = len(self.in_flight.wanted)
        return self._workers.totals(in_flight=in_flight, **self._memory.totals())

    @property
    def processes(self) -> list[Process]:
        return self._workers.processes

    def close(self) -> None:
        if self.closed or os.getpid() != self._pid:
            return
        self._workers.end()
        self.connection.flush()
        self.closed = True
