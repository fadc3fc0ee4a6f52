"""The local manager: mini-batches in flight, from publication to delivery.

How it works. Workers need no manager in order to claim: they find the published mini-batches in
shared memory and take tiny-batches from them by compare-and-swap. Since several mini-batches are
published ahead, there is nothing to decide while no batch is asked for. So the manager is no
thread: it runs inside ``__next__``. There it waits on one futex for the oldest mini-batch to be
complete, reads what workers report through their pipes, looks for dead workers every 0.02 s, takes
the mini-batch out, and publishes the next one into the slots that have come free.

Why it is right. A mini-batch is done when none of its state words says waiting or active; only the
claimant of an active tiny-batch moves it on, and only for a process that has ended does the manager
take its tiny-batches back (``ManagerQueue.take_back``). So no row has two writers, and whatever
dies, each tiny-batch is completed once in the batch that is delivered. A worker reports a failure
before it changes the state word; the manager reads all reports again after it has seen the words,
and refuses to deliver a mini-batch whose words ask for a report that there is not. A discarded
mini-batch keeps its slots while a worker may claim or write in it. Rows of a delivered one return
to the pool when the last tensor over them is gone.

Between any two steps of this process an exception may come: Ctrl-C, a lack of memory or of file
descriptors. So nothing is taken out of where it is before what becomes of it is written down. A
message is forgotten after it was handled, a worker is replaced before the dead one is forgotten,
and a mini-batch stays in ``in_flight.jobs`` until ``next()`` has returned it. The next call finds
what was not finished and goes on with it.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial

from fusionloader import _native
from fusionloader.data.deferred.counts import Counts
from fusionloader.engine.delivery.device_batches import Arriving
from fusionloader.engine.delivery.refusals import warn_of
from fusionloader.engine.manager.batch_memory import BatchMemory
from fusionloader.engine.manager.hung_workers import HungWorkers
from fusionloader.engine.manager.in_flight import InFlight, Job, MiniBatch
from fusionloader.engine.manager.loader_workers import LoaderWorkers
from fusionloader.engine.manager.manager import Manager, ManagerOutdated
from fusionloader.engine.manager.options import ManagerOptions, StartWorker
from fusionloader.engine.manager.participant import Hub, LostTinyBatch, Participant
from fusionloader.engine.manager.stalls import StallWatch
from fusionloader.engine.manager.tracing import ManagerTrace
from fusionloader.engine.manager.worker_report import sample_name
from fusionloader.observe.statistics.worker_totals import WorkerTotals
from fusionloader.options.aliases import Batch
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.processes import Process, refuse_in_child
from fusionloader.system.shm import objects
from fusionloader.system.shm.slots import Arena
from fusionloader.transforms.executors.layout import Layout, Memory
from fusionloader.workers import messages
from fusionloader.workers.failures import raise_failure

log = logging.getLogger("fusionloader.manager")

_SLEEP_SECONDS = 0.02
_SEARCH_SECONDS = 1.0


class PlanOutdated(ManagerOutdated):
    """``worker_init_fn`` changed the dataset that the plan was made of."""


class NoFixedLayout(ManagerOutdated):
    """Samples cannot be written row by row; the message says why."""


class LocalManager(Manager):
    """Publishes mini-batches to its workers and hands out those that are done.

    Attributes:
        queue: of its mini-batches, in shared memory.
    """

    closed = True  # of one that could not be made
    in_flight: InFlight
    trace: ManagerTrace

    def __init__(
        self, options: ManagerOptions, layout: Layout | None, start: StartWorker, deferred: Counts
    ) -> None:
        """``start`` starts a worker process; ``deferred`` counts the images of all."""
        self._options = options
        self._pid = os.getpid()
        self._deferred = deferred
        self._most_in_flight = options.in_flight
        self._most = max(options.workers, options.most_workers)
        self._ring_size = options.in_flight * self._most // max(options.workers, 1) * 2 + 2
        self._workers = LoaderWorkers(options, self._most)
        self._arena = Arena()
        self._control_fd, self.queue = self._make_queue()
        self.in_flight = InFlight(self.queue, options.tiny_batch_size)
        if options.passes is not None:
            options.passes.follow(self.in_flight)
        self._outdated, self._no_layout = False, ""
        self._worker_failures: list[messages.Failure] = []  # that are to be raised
        named = partial(sample_name, in_flight=self.in_flight, name=options.name)
        self._hung = HungWorkers(self._workers, options.stall_timeout, named)
        self.trace = ManagerTrace(self._control_fd, self.queue, self.in_flight, self._workers)
        self._memory = BatchMemory(options, self._arena, self.queue, self._ring_size)
        self.closed = False
        try:
            self._begin(layout, start)
        except BaseException:
            self.close()
            raise

    def _make_queue(self) -> tuple[int, _native.ManagerQueue]:
        """Returns the control block's descriptor and the queue in it.

        Raises:
            SharedMemoryExhausted: the address space has no room for it.
        """
        own = self._workers
        workers, ring = own.first_guest_slot, self._ring_size
        fd = objects.create_queue(workers + own.guest_slots, ring)
        shared = (own.guest_slots, own.shareable, own.event_fd)
        try:
            return fd, _native.ManagerQueue(fd, self._arena.fd, workers, ring, *shared)
        except OSError as error:
            nbytes = os.fstat(fd).st_size
            os.close(fd)
            objects.raise_exhausted(error, nbytes, "a queue")
            raise

    def _begin(self, layout: Layout | None, start: StartWorker) -> None:
        """Starts the processes."""
        if layout is not None:
            self._memory.settle(layout, ())
        try:
            buffers = self._memory.shared_buffers()
        except MemorySharingError as error:
            warn_of(error, "CPU workers make all samples", "gpu_worker")
            self._workers.participants = self._memory.without_writer(self.participants)
            buffers = []
        fds = self._control_fd, self._arena.fd
        hub = Hub(self.queue, *fds, self._options.workers, self._most, buffers)
        self._workers.start(hub, start)

    @property
    def participants(self) -> Sequence[Participant]:
        """What takes part beside its workers."""
        return self._workers.participants

    def resize(self, count: int) -> None:
        """Has ``count`` CPU workers from now on, or as many as there is room for.

        What one that is ended was at is done again by another.
        """
        wanted = min(count, self._most)
        if wanted < count:
            log.warning("this iterator goes on with %d workers: it has no room for more", wanted)
        self._most_in_flight = max(self._options.in_flight * wanted // self._options.workers, 1)
        for death in self._workers.resize(wanted):
            death.receiver.handle(self._handle)
            self.in_flight.forget_reports(death.number)
            self.queue.take_back(death.number)

    # ---- publishing ----------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        """Mini-batches that may be drawn now, beside those in flight."""
        return self._most_in_flight - len(self.in_flight.wanted)

    @property
    def room(self) -> int:
        """Mini-batches that may be published now, as far as there is memory for them."""
        most = min(self._most_in_flight, self._memory.most_in_flight)
        return min(most - len(self.in_flight.wanted), self._ring_room)

    @property
    def _ring_room(self) -> int:
        """Entries of the ring that are free: the oldest mini-batch may be far behind the others."""
        return self._ring_size - (self.queue.published - self.in_flight.oldest)

    def submit(self, batch: MiniBatch) -> None:
        """Publishes a mini-batch, which is in ``in_flight.jobs`` once it cannot be lost any more.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        if self.closed:
            raise RuntimeError("the iterator was closed, and cannot go on: iter(loader) begins one")
        self._publish_last()
        while self._ring_room <= 0:  # a worker is active in discarded ones
            self._look()
            self._hung.look()
            if self._ring_room <= 0:
                self.queue.sleep(self.queue.done_word(), _SLEEP_SECONDS)
        job = Job(batch, self.queue.published, None, None)
        try:
            self._describe(job)
        except BaseException:
            self._memory.release(job)
            raise
        self.in_flight.jobs += [job]
        self._publish_last()
        for each in self.participants:
            each.published()
        self._memory.begin_copies(self.in_flight)

    def _describe(self, job: Job) -> None:
        """Writes the descriptor of a mini-batch into a slot, and takes one for its rows."""
        batch = job.batch
        job.payload = self._memory.rows_for(batch)
        job.descriptor = self._memory.descriptor_for(batch)
        self.queue.describe(
            job.slot,
            sequence=job.sequence,
            rows=batch.rows,
            items=batch.items,
            keys=batch.keys,
            occurrences=batch.occurrences,
            tiny_size=self._options.tiny_batch_size,
            seed=batch.seed,
            epoch=batch.epoch,
            number=batch.number,
            group_size=self._options.group_size,
            payload=job.payload.number if job.payload else None,
            indices=batch.pickled,
            claimant=batch.worker,
        )

    def _publish_last(self) -> None:
        """Publishes the last mini-batch, unless it is published already."""
        job = self.in_flight.jobs[-1] if self.in_flight.jobs else None
        if job is None or job.sequence < self.queue.published:
            return
        self.trace.published(job)
        for each in self.participants:
            each.publishing(job.slot)
        self._advance()
        self.queue.publish(job.slot, job.sequence)

    # ---- waiting -------------------------------------------------------------------------------

    def next_done(self, in_order: bool) -> Job:
        """Waits for the oldest mini-batch, or with ``in_order=False`` for any, and takes it.

        Raises:
            NoFixedLayout: samples cannot be written row by row.
            PlanOutdated: workers have another dataset than the plan.
            RuntimeError: after ``timeout`` seconds, or when workers cannot be started or ended.
        """
        try:
            return self._wait_for_done(in_order)
        finally:  # what comes next allocates on the device, or is the caller's own work
            for each in self.participants:
                each.waited()

    def _wait_for_done(self, in_order: bool) -> Job:
        refuse_in_child(self._pid)
        watch, timeout, search_at = StallWatch(), self._options.timeout, _SEARCH_SECONDS
        while True:
            if self.closed:  # its workers are not to be replaced
                raise RuntimeError("the iterator was closed while a thread waited for a batch")
            seen = self.queue.done_word()
            job = self.in_flight.done(in_order)
            self._look()  # also at what workers sent about it, which they did before it was done
            if job is not None:
                return self._take(job)
            if timeout and watch.waited >= timeout:
                raise RuntimeError(
                    f"DataLoader timed out after {timeout} seconds. {self._worker_report()}"
                )
            self._hung.look()
            watch.check(self._worker_report)
            if watch.waited >= search_at:
                search_at += _SEARCH_SECONDS
                self._search()
            self.trace.look()
            self._sleep(seen)

    def take_done(self, in_order: bool) -> Job | None:
        """Returns what ``next_done`` would if it is there already, without waiting."""
        refuse_in_child(self._pid)
        job = self.in_flight.done(in_order)
        self._receive()
        return None if job is None else self._take(job)

    def _take(self, job: Job) -> Job:
        tiny_batches = -(-len(job.rows) // self._options.tiny_batch_size)
        for each in self.participants:
            each.taken(job.slot, tiny_batches)
        self.trace.taken_out(job)
        job.taken = True
        self._advance()
        self._memory.begin_copies(self.in_flight)
        return job

    def _search(self) -> None:
        """Has workers look for tiny-batches that none of them finds.

        A worker that is stopped in the middle of a claim has moved the queue word past one, and
        has not yet written into the state word that it holds it.
        """
        for job in self.in_flight.wanted:
            self.queue.search(job.slot)

    def _sleep(self, seen: int) -> None:
        seconds = _SLEEP_SECONDS
        if self._options.timeout:
            seconds = min(seconds, self._options.timeout / 4)
        self._workers.sleep(seen, seconds)

    def _advance(self) -> None:
        """Lets workers begin their search at the oldest mini-batch that is left."""
        self.queue.deliver_until(self.in_flight.oldest)

    # ---- what workers report -------------------------------------------------------------------

    def _receive(self) -> None:
        self._workers.handle(self._handle)
        self._raise_reported()

    def _raise_reported(self) -> None:
        """Raises what workers have reported that concerns no mini-batch, once all is handled."""
        if self._outdated:
            raise PlanOutdated
        if self._no_layout:
            raise NoFixedLayout(self._no_layout)
        if self._worker_failures:
            raise_failure(self._worker_failures.pop(0))

    def _handle(self, message: messages.Message) -> None:
        if isinstance(message, messages.WorkerFailed):
            self._worker_failures.append(message.failure)
        elif isinstance(message, messages.DatasetChanged):
            self._outdated = True
        elif isinstance(message, messages.RemoteNotice):
            log.warning("%s", message.text)
        elif isinstance(message, messages.ImagesDeferred):
            self._deferred.add(message.counts)
        elif isinstance(message, messages.LayoutFound):
            self._settle_layout(message.layout)
        elif isinstance(message, messages.JobMessage) and (
            job := self.in_flight.find(message.sequence)
        ):
            job.note(message)

    def _settle_layout(self, layout: Layout | str) -> None:
        if self._memory.layout is not None:
            return
        if not isinstance(layout, Layout):
            self._no_layout = layout
            return
        self._memory.settle(layout, self.in_flight)
        self._memory.begin_copies(self.in_flight)

    # ---- deaths --------------------------------------------------------------------------------

    def _look(self) -> None:
        self._publish_last()
        self._receive()
        in_flight = self.in_flight
        for lost in self._workers.look(self._handle, in_flight.hopeless, in_flight.forget_reports):
            self._count_death(lost)
        self._raise_reported()
        for job in in_flight.dropped():
            self.release(job)
            self._advance()

    def _count_death(self, lost: LostTinyBatch) -> None:
        """Says of a tiny-batch that was given up on which samples workers have died."""
        job, tiny_batch = self.in_flight.find(lost.sequence), lost.tiny_batch
        if job is None:
            return
        job.deaths[tiny_batch] += 1
        if not lost.given_up:
            return
        rows = job.rows_of(tiny_batch, self._options.tiny_batch_size)
        named = ", ".join(job.named(row, self._options.name) for row in rows)
        text = (
            f"DataLoader worker (pid {lost.pid}) {lost.manner}. {job.deaths[tiny_batch]} workers "
            f"died on the same samples; one of these is the cause: {named}. Load them with "
            "num_workers=0 to see where"
        )
        position = tiny_batch * self._options.tiny_batch_size
        job.failures[tiny_batch] = messages.Failure(pickle.dumps(RuntimeError), text, position)

    def _worker_report(self) -> str:
        return self._workers.report(self.in_flight)

    # ---- delivery ------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout | None:
        """Layout of a batch's rows; ``None`` until a sample has shown it."""
        return self._memory.layout

    def check(self, job: Job) -> None:
        """Raises RuntimeError where a mini-batch that is done lacks a worker's report.

        Its rows would otherwise be delivered as they were in an earlier mini-batch.
        """
        missing = job.unreported(self.queue, self._options.tiny_batch_size)
        if missing:
            rows = job.rows_of(missing[0], self._options.tiny_batch_size)
            raise RuntimeError(
                f"a worker has failed at tiny-batch {missing[0]} of mini-batch {job.number} "
                f"({job.named(rows[0], self._options.name)} and others), and its report was "
                "lost. This is a fault of FusionLoader: please report it. This iterator cannot go "
                "on; iter(loader) begins another"
            )

    def deliver(self, job: Job) -> Memory:
        """Returns the owner of a mini-batch's rows; the slot is free when nothing refers to it."""
        return self._memory.deliver(job)

    def deliver_whole(self, job: Job) -> Batch:
        """Returns a mini-batch that a worker has made whole."""
        return self._memory.deliver_whole(job)

    def deliver_on_device(self, job: Job) -> Arriving:
        """Returns a mini-batch that is whole in its slot as a batch on its way to the device."""
        return self._memory.deliver_on_device(job)

    def release(self, job: Job) -> None:
        """Forgets a mini-batch that was returned or discarded, and takes back its slots."""
        self.in_flight.jobs.remove(job)
        self._memory.release(job)

    # ---- ending --------------------------------------------------------------------------------

    def discard(self) -> None:
        """Drops every mini-batch in flight; samples under way are still finished."""
        self._publish_last()
        self.queue.withdraw()
        self.in_flight.discard()

    def receive_deferred(self) -> None:
        """Counts the deferred images that workers have reported and nobody asked for."""

        def count(message: messages.Message) -> None:
            if isinstance(message, messages.ImagesDeferred):
                self._deferred.add(message.counts)

        self._workers.handle(count)

    def totals(self) -> WorkerTotals:
        """Returns what its workers have counted, to any thread, and after the end, too."""
        in_flight = len(self.in_flight.wanted)
        return self._workers.totals(in_flight=in_flight, **self._memory.totals())

    @property
    def processes(self) -> list[Process]:
        """The worker processes."""
        return self._workers.processes

    def close(self) -> None:
        """Ends the workers and gives the memory back; delivered batches stay valid."""
        if self.closed or os.getpid() != self._pid:
            return  # in a forked child the workers are its parent's
        steps: list[Callable[[], object]] = [
            self.receive_deferred,
            self.trace.end,
            self.queue.stop,
            self._workers.end,
            lambda: self._memory.close(self.in_flight),
            self.in_flight.jobs.clear,
            self._arena.close,
            lambda: os.close(self._control_fd),
        ]
        failed: BaseException | None = None
        self.closed = True
        for step in steps:  # each is taken, whatever one before it raises
            try:
                step()
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # an exception may have come before it was closed
            self.close()
