"""The local manager: mini-batches in flight, from publication to delivery.

How it works. Workers claim without the manager: they find the published mini-batches in shared
memory, and take tiny-batches from them by compare-and-swap. Several mini-batches are published
ahead, so nothing has to be decided between two calls of ``next()``. Therefore the manager needs no
thread: it runs inside ``__next__``. There it waits on one futex until the oldest mini-batch is
complete, reads the workers' reports from their pipes, looks for dead workers every 0.02 s, takes
the mini-batch out, and publishes the next one into the slots that are free.

Why it is right. A mini-batch is done when none of its state words says waiting or active. Only the
claimant of an active tiny-batch changes its word, and the manager takes a tiny-batch back only
after the claimant's process has ended (``Publications.give_back``). So no row has two writers, and
each tiny-batch of a delivered batch is completed once, whichever process dies. A worker reports a
failure before it changes the state word. The manager reads all reports again after it has seen the
words. Where the words require a report that is missing, the tiny-batch is made again. A discarded
mini-batch keeps its slots while a worker may claim or write in it. The rows of a delivered one
return to the pool when the last tensor over them is freed.

An exception may come between any two steps of this process: Ctrl-C, or a lack of memory or file
descriptors. So a step records its result before it removes its input: a message is dropped after
it was handled, a dead worker is forgotten after it was replaced, and a mini-batch stays in
``in_flight.jobs`` until ``next()`` has returned it. The next call goes on with unfinished work.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from fusionloader import _native
from fusionloader.data.deferred.counts import Counts
from fusionloader.engine.delivery.device_batches import Arriving
from fusionloader.engine.delivery.refusals import warn_refused
from fusionloader.engine.manager.batch_memory import BatchMemory
from fusionloader.engine.manager.in_flight import InFlight, Job
from fusionloader.engine.manager.loader_workers import LoaderWorkers
from fusionloader.engine.manager.manager import Manager, ManagerOutdated
from fusionloader.engine.manager.options import ManagerOptions, StartWorker
from fusionloader.engine.manager.participant import Hub, Participant
from fusionloader.engine.manager.publications import MOST_DEATHS, MiniBatch
from fusionloader.engine.manager.stalls import HungWorkers, StallWatch, sample_name
from fusionloader.engine.manager.tracing import ManagerTrace
from fusionloader.observe.statistics.worker_totals import WorkerTotals
from fusionloader.options.aliases import Batch
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.processes import Process, refuse_in_child
from fusionloader.system.shm import objects
from fusionloader.system.shm.slots import Arena
from fusionloader.transforms.executors.layout import Layout, Memory
from fusionloader.workers import messages
from fusionloader.workers.sample_errors import raise_failure

log = logging.getLogger("fusionloader.manager")

_SLEEP_SECONDS = 0.02
_SEARCH_SECONDS = 1.0


class PlanOutdated(ManagerOutdated):
    """``worker_init_fn`` changed the dataset after the plan was compiled."""


class NoFixedLayout(ManagerOutdated):
    """Samples cannot be written row by row; the message says why."""


class LocalManager(Manager):
    """Publishes mini-batches to its workers and returns those that are done.

    Attributes:
        queue: the queue of mini-batches, in shared memory.
    """

    closed = True  # until __init__ has made the workers: ``__del__`` also runs if it raises
    in_flight: InFlight
    trace: ManagerTrace

    def __init__(
        self, options: ManagerOptions, layout: Layout | None, start: StartWorker, deferred: Counts
    ) -> None:
        """``start`` starts a worker process; ``deferred`` counts the deferred images."""
        self._options = options
        self._pid = os.getpid()
        self._deferred = deferred
        self._most_in_flight = options.in_flight
        self._most = max(options.workers, options.most_workers)
        # Twice the most in flight after a resize, since discarded mini-batches keep their entries.
        self._ring_size = options.in_flight * self._most // max(options.workers, 1) * 2 + 2
        self._workers = LoaderWorkers(options, self._most)
        self._arena = Arena()
        self._control, self.queue = self._make_queue()
        self.in_flight = InFlight(self.queue, self._ring_size)
        if options.passes is not None:
            options.passes.follow(self.in_flight)
        self._outdated, self._no_layout = False, ""
        self._worker_failures: list[messages.Failure] = []  # not raised yet
        named = partial(sample_name, in_flight=self.in_flight)
        self._hung = HungWorkers(self._workers, options.stall_timeout, named)
        self.trace = ManagerTrace(self._control.fd, self.queue, self.in_flight, self._workers)
        self._memory = BatchMemory(options, self._arena, self.queue, self._ring_size)
        self.closed = False
        try:
            self._begin(layout, start)
        except BaseException:
            self.close()
            raise

    def _make_queue(self) -> tuple[objects.ControlBlock, _native.ManagerQueue]:
        """Returns the control block and the queue in it.

        Raises:
            SharedMemoryExhausted: the address space has too little room.
        """
        own = self._workers
        workers, ring = own.first_guest_slot, self._ring_size
        control = objects.ControlBlock(workers + own.guest_slots, ring)
        shared = (own.guest_slots, own.shareable, own.event_fd)
        try:
            queue = _native.ManagerQueue(control.fd, self._arena.fd, workers, ring, *shared)
        except OSError as error:
            nbytes = os.fstat(control.fd).st_size
            objects.raise_exhausted(error, nbytes, "a queue")
            raise
        return control, queue

    def _begin(self, layout: Layout | None, start: StartWorker) -> None:
        if layout is not None:
            self._memory.settle(layout, ())
        try:
            buffers = self._memory.shared_buffers()
        except MemorySharingError as error:
            warn_refused(error, "CPU workers make all samples", "gpu_worker")
            self._workers.participants = self._memory.without_writer(self.participants)
            buffers = []
        fds = self._control.fd, self._arena.fd
        hub = Hub(self.queue, *fds, self._options.workers, self._most, buffers)
        self._workers.start(hub, start)

    @property
    def participants(self) -> Sequence[Participant]:
        return self._workers.participants

    def resize(self, count: int) -> None:
        """Changes the number of CPU workers to ``count``, or to the most there is room for.

        Other workers repeat the unfinished work of those that end.
        """
        wanted = min(count, self._most)
        if wanted < count:
            log.warning("this iterator goes on with %d workers: it has no room for more", wanted)
        self._most_in_flight = max(self._options.in_flight * wanted // self._options.workers, 1)
        for death in self._workers.resize(wanted):
            death.receiver.handle(self._handle)
            self.in_flight.give_back(death.number, death.pid, death.manner, is_accident=False)

    # ---- publishing ----------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        return self._most_in_flight - len(self.in_flight.wanted)

    @property
    def capacity(self) -> int:
        most = min(self._most_in_flight, self._memory.most_in_flight)
        return min(most - len(self.in_flight.wanted), self.in_flight.ring_room)

    def submit(self, batch: MiniBatch) -> None:
        """Publishes a mini-batch. If this raises after the job is in ``in_flight``, it is not lost.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        if self.closed:
            raise RuntimeError("the iterator was closed, and cannot go on: iter(loader) begins one")
        self._publish_last()
        watch = StallWatch()
        while self.in_flight.ring_room <= 0:  # a worker is active in discarded mini-batches
            self._look()
            self._check_wait(watch)
            if self.in_flight.ring_room <= 0:
                self.queue.sleep(self.queue.done_word(), _SLEEP_SECONDS)
        size, name = self._options.tiny_batch_size, self._options.name
        job = Job(batch, size, name=name, sequence=self.queue.published)
        try:
            self._memory.allocate(job)
            job.describe(self.queue, self._options.group_size, self._workers.count)
        except BaseException:
            self._memory.release(job)
            raise
        self.in_flight.jobs += [job]
        self._publish_last()
        for each in self.participants:
            each.published()
        self._memory.begin_copies(self.in_flight)

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
        finally:  # also on errors: the next steps allocate on the device, or are the caller's
            for each in self.participants:
                each.waited()

    def _wait_for_done(self, in_order: bool) -> Job:
        refuse_in_child(self._pid)
        watch, search_at = StallWatch(), _SEARCH_SECONDS
        while True:
            if self.closed:  # its workers must not be replaced
                raise RuntimeError("the iterator was closed while a thread waited for a batch")
            seen = self.queue.done_word()
            job = self.in_flight.done(in_order)
            # After ``done``: workers send their reports before they mark a tiny-batch as done.
            self._look()
            if job is not None and self._is_reported(job):
                return self._take(job)
            self._check_wait(watch)
            if watch.waited >= search_at:
                search_at += _SEARCH_SECONDS
                self._search()
            self.trace.look()
            self._sleep(seen)

    def _check_wait(self, watch: StallWatch) -> None:
        timeout = self._options.timeout
        if timeout and watch.waited >= timeout:
            raise RuntimeError(
                f"DataLoader timed out after {timeout} seconds. The next call of next() waits "
                f"again. {self._worker_report()}"
            )
        self._hung.look()
        watch.check(self._worker_report)

    def take_done(self, in_order: bool) -> Job | None:
        refuse_in_child(self._pid)
        job = self.in_flight.done(in_order)
        self._receive()
        return self._take(job) if job is not None and self._is_reported(job) else None

    def _is_reported(self, job: Job) -> bool:
        """Whether all reports about a mini-batch that is done are there.

        Without them rows would be delivered with the contents of an earlier mini-batch. A
        tiny-batch whose report is missing is made again.

        Raises:
            RuntimeError: reports go missing again and again, or another worker cannot repeat it.
        """
        missing = job.unreported(self.queue)
        for tiny_batch in missing:
            job.repeats[tiny_batch] += 1
            if job.worker >= 0 or job.repeats[tiny_batch] > MOST_DEATHS:
                row = job.rows_of(tiny_batch)[0]
                raise RuntimeError(
                    f"a worker has failed at tiny-batch {tiny_batch} of mini-batch {job.number} "
                    f"({job.named(row)} and others) without a report. This is "
                    "a fault of FusionLoader: please report it. iter(loader) begins another epoch"
                )
            self.queue.repeat(job.slot, job.sequence, tiny_batch)
        return not missing

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
        """Makes workers search for tiny-batches that the queue word no longer covers.

        A worker that is stopped within a claim has moved the queue word past a tiny-batch, but has
        not yet marked that tiny-batch as its own.
        """
        for job in self.in_flight.wanted:
            self.queue.search(job.slot)

    def _sleep(self, seen: int) -> None:
        seconds = _SLEEP_SECONDS
        if self._options.timeout:
            seconds = min(seconds, self._options.timeout / 4)
        self._workers.sleep(seen, seconds)

    def _advance(self) -> None:
        """Makes workers begin their search at the oldest remaining mini-batch."""
        self.queue.deliver_until(self.in_flight.oldest)

    # ---- what workers report -------------------------------------------------------------------

    def _receive(self) -> None:
        self._workers.handle(self._handle)
        self._raise_reported()

    def _raise_reported(self) -> None:
        """Raises reports that concern no mini-batch, after all messages were handled."""
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
            logging.getLogger("fusionloader.remote").warning("%s", message.text)
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
        self._workers.look(self._handle, self.in_flight)
        self._raise_reported()
        for job in self.in_flight.dropped():
            self.release(job)
            self._advance()

    def _worker_report(self) -> str:
        return self._workers.report(self.in_flight)

    # ---- delivery ------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout | None:
        return self._memory.layout

    def deliver(self, job: Job) -> Memory:
        return self._memory.deliver(job)

    def deliver_whole(self, job: Job) -> Batch:
        return self._memory.deliver_whole(job)

    def deliver_on_device(self, job: Job) -> Arriving:
        return self._memory.deliver_on_device(job)

    def release(self, job: Job) -> None:
        self.in_flight.jobs.remove(job)
        self._memory.release(job)

    # ---- ending --------------------------------------------------------------------------------

    def discard(self) -> None:
        """Drops all mini-batches in flight. Workers still finish the samples they are at."""
        self._publish_last()
        self.queue.withdraw()
        self.in_flight.discard()

    def receive_deferred(self) -> None:
        def count(message: messages.Message) -> None:
            if isinstance(message, messages.ImagesDeferred):
                self._deferred.add(message.counts)

        self._workers.handle(count)

    def totals(self) -> WorkerTotals:
        in_flight = len(self.in_flight.wanted)
        return self._workers.totals(in_flight=in_flight, **self._memory.totals())

    @property
    def processes(self) -> list[Process]:
        return self._workers.processes

    def close(self) -> None:
        if self.closed or os.getpid() != self._pid:
            return  # in a forked child the workers belong to the parent
        steps: list[Callable[[], object]] = [
            self.receive_deferred,
            self.trace.end,
            self.queue.stop,
            self._workers.end,
            lambda: self._memory.close(self.in_flight),
            self.in_flight.jobs.clear,
            self._arena.close,
            self._control.close,
        ]
        failed: BaseException | None = None
        self.closed = True
        for step in steps:  # all of them, even if one raises
            try:
                step()
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # an exception may have prevented the iterator's own close
            self.close()
