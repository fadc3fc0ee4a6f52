"""A job's side of a group: mini-batches in flight, with the face of a ``LocalManager``.

The mini-batches are submitted to the coordinator and awaited from it. Where the job is to go on
alone, ``next_done`` and ``take_done`` raise ``LeftGroup``: what is in flight is then for a manager
of the job's own to prepare.
"""

from __future__ import annotations

import logging
import os
import pickle

from fusionloader.coordinated.connection import Prepared
from fusionloader.coordinated.group_memory import GroupMemory
from fusionloader.coordinated.group_workers import GroupWorkers
from fusionloader.coordinated.membership import Membership
from fusionloader.coordinated.sample_lists import SampleLists, packed
from fusionloader.executors.layout import Layout, Memory
from fusionloader.manager.hung_workers import HungWorkers
from fusionloader.manager.in_flight import Job, MiniBatch
from fusionloader.manager.options import ManagerOptions, StartWorker
from fusionloader.manager.stalls import StallWatch
from fusionloader.statistics.totals import WorkerTotals
from fusionloader.trace.recorder import Recorder
from fusionloader.workers import messages
from fusionloader.workers.processes import Process, refuse_in_child

log = logging.getLogger("fusionloader.coordinated")

_SLEEP_SECONDS = 0.1


class GroupInFlight:
    """Mini-batches that were submitted, the oldest first.

    Attributes:
        jobs: those that were not delivered.
        due: the one of them that was handed out, with what workers have reported about it.
    """

    def __init__(self, membership: Membership) -> None:
        self._connection = membership.connection
        self.jobs: list[Job] = []
        self.due: Job | None = None

    @property
    def wanted(self) -> list[Job]:
        """Those that were not handed out."""
        due = self.due
        return [job for job in self.jobs if due is None or job.number != due.number]

    def has(self, number: int) -> bool:
        """Whether a mini-batch was submitted and not delivered."""
        return any(job.number == number for job in self.jobs)

    def remove(self, job: Job) -> None:
        """Removes one that is delivered, or is not to be."""
        self.jobs = [each for each in self.jobs if each.number != job.number]
        self.due = None

    def done(self, in_order: bool) -> Job | None:
        """Returns one that can be delivered; with ``in_order`` no other than the oldest."""
        wanted = self.wanted[:1] if in_order else self.wanted
        return next((job for job in wanted if self._connection.is_prepared(job.number)), None)

    @property
    def completed(self) -> int:
        """Tiny-batches that are complete: not known here."""
        return 0

    @property
    def ready(self) -> int:
        """Mini-batches that could be delivered now."""
        return sum(self._connection.is_prepared(job.number) for job in self.wanted)


class GroupTrace:
    """The feed of a trace: what workers do for several jobs is in none of their traces."""

    def begin(self, recorder: Recorder, iterator: int) -> None:
        """See ``Feed``."""
        recorder.notes.append(
            "workers of several jobs prepare the mini-batches: they are not shown"
        )

    def end(self) -> None:
        """See ``Feed``."""


class GroupManager:
    """Submits mini-batches to the coordinator and hands out those that are done.

    Attributes:
        in_flight: the submitted mini-batches.
        gpu: ``None``: a group has no GPU worker.
        layout: of a batch's rows.
        trace: what a trace is told.
        closed: whether it has ended.
        connection: to the coordinator.
    """

    gpu: None = None
    pool_is_closed = False

    def __init__(
        self,
        options: ManagerOptions,
        layout: Layout | None,
        start: StartWorker,
        membership: Membership,
    ) -> None:
        """``start`` starts a worker process."""
        self._options = options
        self._pid = os.getpid()
        self._membership, self.connection = membership, membership.connection
        self.layout = layout
        self.closed = False
        self.in_flight = GroupInFlight(membership)
        self.trace = GroupTrace()
        self._found: Prepared | None = None  # what was handed out last
        # Its memory, once it is delivered: who was interrupted meanwhile asks for it again.
        self._delivered: tuple[Job, Memory] | None = None
        page_locked = options.page_locking is not None
        self._memory = GroupMemory(membership.data_fd, self.connection, page_locked)
        self._most_in_flight = options.in_flight
        self._workers = GroupWorkers(options, membership, start)
        whose = f"a mini-batch of share={membership.word!r}"
        self._hung = HungWorkers(self._workers, options.stall_timeout, lambda _: whose)

    def resize(self, count: int) -> None:
        """Has ``count`` CPU workers from now on, or as many as there is room for."""
        self._workers.resize(count)
        if self._workers.count < count:
            log.warning("this job goes on with %d workers: no room for more", self._workers.count)
        per_worker = self._options.in_flight / self._options.workers
        self._most_in_flight = max(int(per_worker * self._workers.count), 1)

    # ---- publishing ----------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        """Mini-batches that may be drawn now, beside those in flight."""
        return self._most_in_flight - len(self.in_flight.wanted)

    @property
    def room(self) -> int:
        """Mini-batches that may be submitted now; the coordinator waits until there is memory."""
        return self.ahead

    def submit(self, batch: MiniBatch) -> None:
        """Submits a mini-batch, if that was not done before; after an exception it was perhaps."""
        if self.in_flight.has(batch.number):
            return
        samples = SampleLists(batch.items, batch.keys, batch.occurrences, batch.rows)
        self.connection.submit(batch.number, packed(samples))
        self.in_flight.jobs.append(Job(batch, batch.number, None, None))

    # ---- waiting -------------------------------------------------------------------------------

    def next_done(self, in_order: bool) -> Job:
        """Waits for the oldest mini-batch, or with ``in_order=False`` for any, and hands it out.

        Until it is delivered or released it is returned again: an exception loses none.

        Raises:
            LeftGroup: the job is to go on alone.
            RuntimeError: after ``timeout`` seconds, or when workers cannot be started or ended.
            ValueError: the first mini-batch of the other jobs is another one.
        """
        watch, timeout, waited = StallWatch(), self._options.timeout, False
        while True:
            job = self.take_done(in_order)
            if job is not None:
                return job
            self._workers.look()
            self._hung.look()
            # What training has just released goes with the next mini-batch that is submitted.
            self.connection.flush(also_released=waited)
            waited = True
            if timeout and watch.waited >= timeout:
                what = f"DataLoader timed out after {timeout} seconds."
                raise RuntimeError(f"{what} {self._report()}")
            watch.check(self._report)
            self.connection.receive(min(_SLEEP_SECONDS, timeout / 4 or _SLEEP_SECONDS))

    def take_done(self, in_order: bool) -> Job | None:
        """Returns what ``next_done`` would if it is there already, without waiting."""
        refuse_in_child(self._pid)
        self._delivered = None
        if self.in_flight.due is None:
            self.connection.receive(0.0)
            self._membership.check()
            job = self.in_flight.done(in_order)
            if job is not None:
                self.in_flight.due = self._with_reports(job)
        return self.in_flight.due

    def _with_reports(self, submitted: Job) -> Job:
        job = Job(submitted.batch, submitted.sequence, None, None)
        self._found = found = self.connection.prepared(job.number)
        for report in found.reports:
            job.note(report)
        for tiny_batch, pid in found.given_up:
            job.failures.append(self._death(job, tiny_batch, pid))
        if len(job.failures) < found.failed:
            job.failures.append(self._unexplained(job, found))
        return job

    def _unexplained(self, job: Job, found: Prepared) -> messages.Failure:
        text = (
            f"mini-batch {job.number} of share={self._membership.word!r} has {found.failed} "
            f"tiny-batches that failed, and workers have reported {len(job.failures)}: it is left "
            "out, and the epoch goes on behind it. Please report this"
        )
        return messages.Failure(pickle.dumps(RuntimeError), text, job.rows[0])

    def _death(self, job: Job, tiny_batch: int, pid: int) -> messages.Failure:
        rows = job.rows_of(tiny_batch, self._options.tiny_batch_size)
        named = ", ".join(self._options.name(job.indices[row]) for row in rows)
        text = (
            f"DataLoader worker (pid {pid}) died, as others of this group before it, on the same "
            f"samples; one of these is the cause: {named}. Load them with num_workers=0 to see "
            "where"
        )
        return messages.Failure(pickle.dumps(RuntimeError), text, rows[0])

    def _report(self) -> str:
        jobs = self._membership.stats().jobs
        return (
            f"share={self._membership.word!r}: {len(self.in_flight.wanted)} mini-batches are "
            f"submitted, none is done; others in the group: {', '.join(map(str, jobs)) or 'none'}."
        )

    # ---- delivery ------------------------------------------------------------------------------

    def deliver(self, job: Job) -> Memory:
        """Returns the memory of a mini-batch's rows, which nobody else sees changes of.

        The same again if the mini-batch was delivered last.
        """
        assert self._found is not None
        if self._delivered is None or self._delivered[0] is not job:
            self._delivered = job, self._memory.memory_of(self._found)
        memory = self._delivered[1]
        if self.in_flight.due is job:
            self._memory.deliver(self._found, memory)
            self._end(job)
        return memory

    def release(self, job: Job) -> None:
        """Releases a mini-batch that is not delivered, if that was not done before."""
        if self.in_flight.due is job:
            assert self._found is not None
            self._memory.release(self._found)
            self._end(job)

    def _end(self, job: Job) -> None:
        self.connection.take(job.number)
        self.in_flight.remove(job)

    # ---- ending --------------------------------------------------------------------------------

    def discard(self) -> None:
        """Leaves the epoch before its end."""
        self._membership.end_epoch(finished=False)
        self._delivered = self.in_flight.due = None
        self.in_flight.jobs.clear()

    def receive_deferred(self) -> None:
        """Does nothing: plans defer no images."""

    def totals(self) -> WorkerTotals:
        """Returns what this job's workers have counted, for the group."""
        return self._workers.totals(self._memory.totals(), len(self.in_flight.wanted))

    @property
    def processes(self) -> list[Process]:
        """The worker processes."""
        return self._workers.processes

    def close(self) -> None:
        """Ends the workers; delivered batches stay valid."""
        if self.closed or os.getpid() != self._pid:
            return
        self._delivered = None
        self._workers.end()
        self.connection.flush()
        self.closed = True
