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
so no failure is overlooked. A discarded mini-batch keeps its slots while a worker is active in it.
Rows of a delivered one return to the pool when the last tensor over them is gone.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterable
from functools import partial

from fusionloader import _native
from fusionloader.deferred.counts import Counts
from fusionloader.delivery.device_batches import Arriving
from fusionloader.executors.layout import Layout
from fusionloader.gpu.control import GpuControl
from fusionloader.gpu.start import Connections, GpuOptions
from fusionloader.manager.batch_memory import BatchMemory
from fusionloader.manager.hung_workers import HungWorkers
from fusionloader.manager.in_flight import InFlight, Job, MiniBatch
from fusionloader.manager.loader_workers import LoaderWorkers, LostTinyBatch
from fusionloader.manager.options import ManagerOptions, StartWorker
from fusionloader.manager.stalls import StallWatch
from fusionloader.manager.tracing import ManagerTrace
from fusionloader.manager.worker_report import sample_name
from fusionloader.shm import objects
from fusionloader.shm.slots import Arena, Owner
from fusionloader.statistics.totals import WorkerTotals
from fusionloader.workers import messages
from fusionloader.workers.failures import raise_failure
from fusionloader.workers.processes import Process, refuse_in_child

log = logging.getLogger("fusionloader.manager")

_SLEEP_SECONDS = 0.02
_DEVICE_SECONDS = 0.0005


class PlanOutdated(Exception):
    """``worker_init_fn`` changed the dataset that the plan was made of."""


class NoFixedLayout(Exception):
    """Samples cannot be written row by row; the message says why."""


class LocalManager:
    """Publishes mini-batches to its workers and hands out those that are done.

    Attributes:
        queue: of its mini-batches, in shared memory.
        in_flight: the published mini-batches.
        gpu: the GPU worker's control, where there is one.
        trace: what a trace is told of the workers.
        closed: whether it has ended.
    """

    def __init__(
        self, options: ManagerOptions, layout: Layout | None, start: StartWorker, deferred: Counts
    ) -> None:
        """``start`` starts a worker process; ``deferred`` counts the images of all."""
        self._options = options
        self._pid = os.getpid()
        self._sequence = 0
        self._deferred = deferred
        self.closed = False
        self._most_in_flight = options.in_flight
        self._most = max(options.workers, options.most_workers)
        self._ring_size = options.in_flight * self._most // max(options.workers, 1) * 2 + 2
        self._workers = LoaderWorkers(options, self._most)
        self._arena = Arena()
        self._control_fd, self.queue = self._make_queue()
        self.in_flight = InFlight(self.queue)
        named = partial(sample_name, in_flight=self.in_flight, name=options.name)
        self._hung = HungWorkers(self._workers, options.stall_timeout, named)
        self.trace = ManagerTrace(self.queue, self.in_flight, self._workers)
        self._memory = BatchMemory(options, self._arena, self.queue, self._ring_size, self._most)
        self.gpu: GpuControl | None = None
        try:
            self._begin(layout, start)
        except BaseException:
            self.close()
            raise

    def _make_queue(self) -> tuple[int, _native.ManagerQueue]:
        """Returns the control block's descriptor and the queue in it."""
        own = self._workers
        workers, ring = own.first_guest_slot, self._ring_size
        nbytes = _native.ManagerQueue.control_bytes(workers + own.guest_slots, ring)
        fd = objects.create(nbytes, "queue")
        shared = (own.guest_slots, own.shareable, own.event_fd)
        return fd, _native.ManagerQueue(fd, self._arena.fd, workers, ring, *shared)

    def _begin(self, layout: Layout | None, start: StartWorker) -> None:
        """Starts the processes."""
        options = self._options
        if layout is not None:
            self._memory.settle(layout, ())
        # A process first: it has the most to build. Processes are not forked while a thread is
        # built, so the thread comes behind them.
        if options.gpu is not None and not options.gpu.in_thread:
            self.gpu = self._start_gpu(options.gpu)
        self._workers.start(self.queue, self._control_fd, self._arena.fd, start)
        if options.gpu is not None and options.gpu.in_thread:
            self.gpu = self._start_gpu(options.gpu)
        self.trace.gpu = self.gpu

    def _start_gpu(self, gpu: GpuOptions) -> GpuControl:
        shared = Connections(self._control_fd, self._arena.fd, self._memory.shared_buffers())
        return GpuControl(self.queue, shared, self._most, self._options.workers, gpu)

    def resize(self, count: int) -> None:
        """Has ``count`` CPU workers from now on, or as many as there is room for.

        What one that is ended was at is done again by another.
        """
        wanted = min(count, self._most)
        if wanted < count:
            log.warning("this iterator goes on with %d workers: it has no room for more", wanted)
        self._most_in_flight = max(self._options.in_flight * wanted // self._options.workers, 1)
        for death in self._workers.resize(wanted):
            self._handle_all(death.last_messages)
            self.queue.take_back(death.number)
        if self.gpu is not None:
            self.gpu.cpu_workers = wanted

    # ---- publishing ----------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        """Mini-batches that may be drawn now, beside those in flight."""
        return self._most_in_flight - len(self.in_flight.wanted)

    @property
    def room(self) -> int:
        """Mini-batches that may be published now, as far as there is memory for them."""
        most = min(self._most_in_flight, self._memory.most_in_flight)
        return most - len(self.in_flight.wanted)

    def submit(self, batch: MiniBatch) -> None:
        """Publishes a mini-batch."""
        while len(self.in_flight) >= self._ring_size:  # a worker is active in discarded ones
            self._look()
            self._hung.look()
            if len(self.in_flight) >= self._ring_size:
                self.queue.sleep(self.queue.done_word(), _SLEEP_SECONDS)
        descriptor, rows = self._memory.descriptor_for(batch), self._memory.rows_for(batch)
        job = Job(batch, self._sequence, descriptor, rows)
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
            payload=rows.number if rows else None,
            indices=batch.pickled,
        )
        self.in_flight.jobs.append(job)
        self.trace.published(job)
        self._sequence += 1
        if self._options.gpu is not None and self._options.gpu.buffers == 0:
            self.queue.set_gpu_rows(job.slot, 1)
        self._workers.call()
        self.queue.publish(job.slot, job.sequence)
        self._workers.published()
        self._memory.begin_copies(self.in_flight)

    # ---- waiting -------------------------------------------------------------------------------

    def next_done(self, in_order: bool) -> Job:
        """Waits for the oldest mini-batch, or with ``in_order=False`` for any, and takes it out.

        Raises:
            NoFixedLayout: samples cannot be written row by row.
            PlanOutdated: workers have another dataset than the plan.
            RuntimeError: after ``timeout`` seconds, or when workers cannot be started or ended.
        """
        try:
            return self._wait_for_done(in_order)
        finally:  # what comes next allocates on the device, or is the caller's own work
            if self.gpu is not None:
                self.gpu.waited()

    def _wait_for_done(self, in_order: bool) -> Job:
        refuse_in_child(self._pid)
        watch, timeout = StallWatch(), self._options.timeout
        while True:
            if self.closed:  # its workers are not to be replaced
                raise RuntimeError("the iterator was closed while a thread waited for a batch")
            seen = self.queue.done_word()
            self._workers.expect()  # each time: other threads may wait for other loaders
            self._look()
            job = self._done(in_order)
            if job is not None:
                return self._take_out(job)
            if timeout and watch.waited >= timeout:
                raise RuntimeError(
                    f"DataLoader timed out after {timeout} seconds. {self._worker_report()}"
                )
            self._hung.look()
            watch.check(self._worker_report)
            self.trace.look()
            self._sleep(seen)

    def take_done(self, in_order: bool) -> Job | None:
        """Returns what ``next_done`` would if it is there already, without waiting."""
        refuse_in_child(self._pid)
        self._receive()
        job = self._done(in_order)
        return None if job is None else self._take_out(job)

    def _take_out(self, job: Job) -> Job:
        if self.gpu is not None:
            tiny_batches = -(-len(job.rows) // self._options.tiny_batch_size)
            self.gpu.finished(job.slot, tiny_batches)
        self.in_flight.jobs.remove(job)
        self.trace.taken_out(job)
        self._advance()
        self._memory.begin_copies(self.in_flight)
        return job

    def _sleep(self, seen: int) -> None:
        seconds = _SLEEP_SECONDS
        if self._options.timeout:
            seconds = min(seconds, self._options.timeout / 4)
        if self.gpu is not None:
            self.gpu.waits()
            if self.gpu.waits_for_device:
                seconds = min(seconds, _DEVICE_SECONDS)
        self._workers.sleep(seen, seconds)

    def _done(self, in_order: bool) -> Job | None:
        job = self.in_flight.done(in_order)
        if job is not None:
            # What workers sent about it was sent before; it may have come since the last look.
            self._receive()
        return job

    def _advance(self) -> None:
        """Lets workers begin their search at the oldest mini-batch that is left."""
        oldest = min((job.sequence for job in self.in_flight), default=self._sequence)
        self.queue.deliver_until(oldest)

    # ---- what workers report -------------------------------------------------------------------

    def _receive(self) -> None:
        self._handle_all(self._workers.receive())

    def _handle_all(self, received: Iterable[messages.Message]) -> None:
        for message in received:
            self._handle(message)

    def _handle(self, message: messages.Message) -> None:
        if isinstance(message, messages.WorkerFailed):
            raise_failure(message.failure)
        if isinstance(message, messages.DatasetChanged):
            raise PlanOutdated
        if isinstance(message, messages.RemoteNotice):
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
            raise NoFixedLayout(layout)
        self._memory.settle(layout, self.in_flight)
        self._memory.begin_copies(self.in_flight)

    # ---- deaths --------------------------------------------------------------------------------

    def _look(self) -> None:
        self._receive()
        for lost in self._workers.look(self._handle_all, self.in_flight.hopeless):
            self._count_death(lost)
        if self.gpu is not None:
            self.gpu.look()
        for job in self.in_flight.dropped():
            self.in_flight.jobs.remove(job)
            self._memory.release(job)
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
        named = ", ".join(self._options.name(job.indices[row]) for row in rows)
        text = (
            f"DataLoader worker (pid {lost.pid}) {lost.manner}. {job.deaths[tiny_batch]} workers "
            f"died on the same samples; one of these is the cause: {named}. Load them with "
            "num_workers=0 to see where"
        )
        job.failures.append(messages.Failure(pickle.dumps(RuntimeError), text, rows[0]))

    def _worker_report(self) -> str:
        return self._workers.report(self.in_flight)

    # ---- delivery ------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout | None:
        """Layout of a batch's rows; ``None`` until a sample has shown it."""
        return self._memory.layout

    def deliver(self, job: Job) -> Owner:
        """Returns the owner of a mini-batch's rows; the slot is free when nothing refers to it."""
        return self._memory.deliver(job)

    def deliver_on_device(self, job: Job) -> Arriving:
        """Returns a mini-batch that is whole in its slot as a batch on its way to the device."""
        return self._memory.deliver_on_device(job)

    def release(self, job: Job) -> None:
        """Takes back the slots of a mini-batch that is not delivered."""
        self._memory.release(job)

    # ---- ending --------------------------------------------------------------------------------

    def discard(self) -> None:
        """Drops every mini-batch in flight; samples under way are still finished."""
        self.queue.withdraw()
        self.in_flight.discard()

    def receive_deferred(self) -> None:
        """Counts the deferred images that workers have reported and nobody asked for."""
        for message in self._workers.receive():
            if isinstance(message, messages.ImagesDeferred):
                self._deferred.add(message.counts)

    def totals(self) -> WorkerTotals:
        """Returns what its workers have counted, to any thread, and after the end, too."""
        return self._workers.totals(self._memory.totals(), len(self.in_flight.wanted))

    @property
    def processes(self) -> list[Process]:
        """The worker processes."""
        gpu = self.gpu.processes if self.gpu is not None else []
        return self._workers.processes + gpu

    @property
    def pool_is_closed(self) -> bool:
        """Whether its workers were a pool's, which has ended."""
        return self._workers.pool_is_closed

    def close(self) -> None:
        """Ends the workers and gives the memory back; delivered batches stay valid."""
        if self.closed or os.getpid() != self._pid:
            return  # in a forked child the workers are its parent's
        self.closed = True
        self.receive_deferred()
        self.trace.end()
        self.queue.stop()
        self._workers.end()
        if self.gpu is not None:
            self.gpu.end()
        self._memory.close(self.in_flight)
        self.in_flight.jobs.clear()
        self._arena.close()
        os.close(self._control_fd)
