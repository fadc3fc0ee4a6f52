"""The iterator over mini-batches that workers claim, as samples or whole."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fusionloader.data.epochs.epoch_state import EpochState, Returned
from fusionloader.data.epochs.sampling import Draws, SampledBatch, undelivered_batches
from fusionloader.engine.delivery.cuda_device import CudaDevice
from fusionloader.engine.delivery.device_batches import (
    DeviceDelivery,
    make_delivery,
    wait_for_copies,
)
from fusionloader.engine.delivery.host_batches import collate_named, collate_rest, without_rows
from fusionloader.engine.delivery.page_locking import CudaPageLocking
from fusionloader.engine.delivery.program_rows import RowConversion
from fusionloader.engine.delivery.refusals import warn_refused
from fusionloader.engine.delivery.to_device import to_device
from fusionloader.engine.iterators.backend import WorkerBackend
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.engine.iterators.next_call import OneThread, note_what_follows
from fusionloader.engine.iterators.pinning import Pinning
from fusionloader.engine.manager.in_flight import Job
from fusionloader.engine.manager.local_manager import LocalManager, NoFixedLayout, PlanOutdated
from fusionloader.engine.manager.manager import Manager, ManagerOutdated
from fusionloader.engine.manager.options import ManagerOptions, StartWorker
from fusionloader.engine.manager.participant import Participant
from fusionloader.engine.manager.publications import MiniBatch
from fusionloader.observe.trace.step_tracer import StepTracer
from fusionloader.options.aliases import AnyLoader, Batch
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.system.finalizers import ExitFinalizer, Finalizer
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.training_signals import raised_by_handler
from fusionloader.transforms.executors.fetchers import asked_samples
from fusionloader.transforms.executors.layout import Layout
from fusionloader.workers.sample_errors import failure_error

_MOST_WORKERS = 32  # queue places for workers added later; more on a machine with more cores
_AHEAD = 2  # batches whose copies to the device have begun, beside the one in use
_ALL = (1 << 31) - 1  # samples in a tiny-batch if a worker makes a mini-batch whole
_FEWEST = 2  # published per taken mini-batch, so that the number in flight soon reaches its limit


class SlotIterator(_BaseDataLoaderIter):
    """Serves map-style datasets and compiled plans."""

    def __init__(
        self, loader: AnyLoader, options: LoaderOptions, state: LoaderState, backend: WorkerBackend
    ) -> None:
        """``backend`` describes the samples and provides the workers."""
        super().__init__(loader)
        self._options, self._backend = options, backend
        self._state, self._statistics, self._epochs = state, state.statistics, state.epochs
        self._clock = state.statistics.clock(options.dataset)
        self._seed = self._epochs.base_seed(int(self._base_seed))
        self._end_workers: Callable[[], object] = lambda: None
        self._end_counting = self._end_workers
        self._delivery = self._make_delivery()
        self._tracer, self._turn = StepTracer(state.traces), OneThread(has_workers=True)
        # A mini-batch that ends with the error of this call of next(), and the error's id: with the
        # error itself, whose traceback has this iterator, the garbage collector would free it.
        self._failed: tuple[int, Job, Returned] | None = None
        self._open()
        self._begin()
        state.idle_window = weakref.WeakMethod(self.idle_window)

    def _make_delivery(self) -> DeviceDelivery | None:
        """Returns what copies rows to the device; ``None`` if torch copies the batches.

        Torch copies batches that workers make whole, because these may be of any type.
        """
        if self._backend.receiver is not None or self._state.refused is not None:
            return None
        return make_delivery(self._options.device)

    @contextmanager
    def idle_window(self) -> Iterator[None]:
        """Opens a block in which the GPU worker may run: the caller does not use the device."""
        with ExitStack() as windows:
            if not self._manager.closed:
                for each in self._manager.participants:
                    windows.enter_context(each.idle_window())
            yield

    def _open(self) -> None:
        self._start_manager()

    def _start_manager(self) -> None:
        self._shutdown_workers()
        self._workers_wanted = self._options.num_workers
        self._conversion = self._send_converted()
        workforce = self._backend.workforce(
            self._options, self._seed, on_device=self._delivery is not None
        )
        options = self._manager_options(workforce.participants)
        self._page_locked = options.page_locking is not None
        self._manager = self._make_manager(options, workforce.start)
        self._in_flight = self._manager.in_flight
        self._pinning: Pinning | None = None
        if self._pin_memory and options.receiver and isinstance(self._manager, LocalManager):
            self._pinning = Pinning(self._manager.deliver_whole, self._pin_memory_device)
        counters, totals = self._statistics.all_workers, self._manager.totals
        # Counters refer to the manager until they end. Python calls the newest finalizer first.
        self._end_counting = Finalizer(self, counters.end, totals)
        self._end_workers = ExitFinalizer(self, self._manager.close)
        counters.begin(totals)
        self._tracer.replace_feed(self._manager.trace)

    def _make_manager(self, options: ManagerOptions, start: StartWorker) -> Manager:
        return LocalManager(options, self._backend.layout, start, self._statistics.deferred)

    def _manager_options(self, participants: Sequence[Participant]) -> ManagerOptions:
        options, backend = self._options, self._backend
        native = backend.worker_kind == "native"
        return ManagerOptions(
            workers=options.num_workers,
            in_flight=options.in_flight,
            tiny_batch_size=options.tiny_batch_size if backend.receiver is None else _ALL,
            timeout=options.timeout,
            name=backend.name,
            group_size=options.tiny_batch_size if options.augment_per == "tiny_batch" else 0,
            page_locking=self._page_locking(),
            delivery=self._delivery,
            conversion=self._conversion,
            max_shared_bytes=options.shared_bytes,
            batch_size=options.batch_size or 0,
            most_workers=0 if options.pool is not None else max(_MOST_WORKERS, os.cpu_count() or 1),
            # A pool sets the affinity of its workers. Threads that user code starts would share
            # the single core of their worker.
            cpu_affinity=options.cpu_affinity if native and options.pool is None else "off",
            worker_kind=backend.worker_kind,
            stall_timeout=options.stalled_after(native),
            receiver=backend.receiver,
            passes=backend.passes,
            participants=participants,
        )

    def _send_converted(self) -> RowConversion | None:
        """Makes workers write what the device can convert."""
        if self._delivery is None:
            return self._backend.send_converted(lambda kernel: False)
        kernel_of = self._delivery.device.conversion_kernel
        return self._backend.send_converted(lambda kernel: isinstance(kernel_of(kernel), int))

    def _page_locking(self) -> CudaPageLocking | None:
        if self._backend.receiver is not None or self._state.refused is not None:
            return None
        if self._delivery is not None:
            return CudaPageLocking(self._delivery.device, is_delivered=True)
        if not (self._pin_memory and torch.cuda.is_available()):
            return None
        device = torch.device("cuda" if self._options.device is None else self._options.device)
        return CudaPageLocking(
            CudaDevice(device if device.type == "cuda" else torch.device("cuda"))
        )

    # ---- an epoch ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._begun = False
        self._clock.begin_epoch()
        self._tracer.follow()
        self._epoch_state = self._start_epoch()
        self._batches = self._draws()
        self._drawn: deque[SampledBatch] = deque()  # not yet published
        self._enter_epoch()
        self._begun = True
        self._fill()

    def _start_epoch(self) -> EpochState:
        return self._epochs.start(self._options, self._seed)

    def _draws(self) -> Draws[SampledBatch]:
        options, fresh = self._options, iter(self._index_sampler)
        batches = undelivered_batches(options, self._epoch_state, fresh, self._backend.count)
        batches = self._epochs.watched(options, batches)
        return Draws(self._backend.look_ahead(batches, options.in_flight))

    def _enter_epoch(self) -> None:
        """Called when an epoch is about to begin. Subclasses may override it."""

    def _fill(self) -> bool:
        """Publishes as ``_publish`` does; goes on without CUDA if page-locking is refused."""
        try:
            return self._publish()
        except MemorySharingError as error:
            self._go_without_cuda(error)  # which publishes
            return bool(self._in_flight.wanted)

    def _publish(self) -> bool:
        """Publishes as many mini-batches as there is room for, but delays no batch that is done.

        Allocating memory for a mini-batch takes long at the start of an epoch. The sampler always
        yields as many as may be drawn, so that its position does not depend on speed.

        Returns:
            Whether a mini-batch is in flight. If none was, one is published even if it has to wait
            for memory, so ``False`` means the end of the epoch.
        """
        self._drop_published()
        # Taken early for its copy, and not by the call of next() that returns it.
        early = sum(job.taken and job.thread is None for job in self._in_flight.undelivered)
        wanted = self._manager.ahead - len(self._drawn) - early
        fresh = itertools.islice(self._batches.now(), max(wanted, 0))
        for published in itertools.count(1):
            if not self._drawn:
                self._drawn.extend(itertools.islice(fresh, 1))
            if not self._drawn or (self._manager.capacity <= 0 and self._in_flight.wanted):
                break
            self._submit(self._drawn[0])
            self._drawn.popleft()
            if published >= _FEWEST and self._in_flight.done(self._options.in_order):
                break
        self._drawn.extend(fresh)
        return bool(self._in_flight.wanted)

    def _drop_published(self) -> None:
        """Drops drawn mini-batches that were published before an exception in ``_publish``."""
        while self._drawn and any(
            job.number == self._drawn[0].number for job in self._in_flight.undelivered
        ):
            self._drawn.popleft()

    def _submit(self, sampled: SampledBatch) -> None:
        described = self._backend.describe(sampled.indices)
        batch = MiniBatch(
            sampled.number,
            sampled.indices,
            described.items,
            sampled.keys,
            sampled.occurrences,
            described.rows,
            self._epoch_state.seed,
            self._epoch_state.epoch,
            described.pickled,
            by_file=described.by_file,
        )
        self._manager.submit(batch)

    @property
    def fixed_workers(self) -> int | None:
        """Number of workers, if another number takes another iterator."""
        return None if self._backend.passes is None else self._backend.passes.workers

    def _reset(self, loader: AnyLoader, first_iter: bool = False) -> None:
        self._options = LoaderOptions.of(loader)
        self._begun = False
        self._discard()
        if self._manager.has_lost_its_workers:
            self._start_manager()
        self._begin()
        self._num_yielded = 0

    def _discard(self) -> None:
        if self._pinning is not None:
            self._pinning.leave(self._in_flight.undelivered)
        self._manager.discard()

    # ---- a batch -------------------------------------------------------------------------------

    def __next__(self) -> Batch:
        lock, left_by, failed = self._turn.lock, self._batches.left_by, None
        epoch_state = self._epoch_state
        try:
            with lock, self._tracer, self._clock:
                for each in self._manager.participants:
                    each.asked()
                try:
                    batch = to_device(super().__next__(), self._options.device)
                    job = self._here()[0]
                    returned = self._returned(job)
                    payload = job.unleased(whole=self._backend.receiver is not None)
                except BaseException as error:
                    failed = self._failed
                    if failed is None or failed[0] != id(error):
                        self._leave()  # before another thread's call begins
                    raise
                finally:
                    self._failed = None
                    epoch_state = self._epoch_state
        except BaseException as error:
            if failed is None or failed[0] != id(error):
                self._leave()  # again, if the exception came after the block above
                # The sampler's error ends the epoch; without a begun epoch, the iterator has ended.
                if self._begun and left_by is self._batches.left_by:
                    note_what_follows(error, ends_batch=False)
                raise
            # As below: until here the next call raises this error again.
            _, job, returned = failed
            epoch_state.returned[returned.number] = returned
            job.returned = True
            raise
        # No call follows, so no exception can come between these assignments and the return. After
        # an earlier exception, the next call returns this batch; from here on, it never does.
        epoch_state.returned[returned.number] = returned
        job.payload, job.owner, job.result = payload, None, None
        job.returned = True
        return batch

    def _leave(self) -> None:
        """Leaves the mini-batches of this call to any thread's: this one may make no further."""
        self._in_flight.leave(threading.get_ident())

    def _here(self) -> list[Job]:
        """Returns the mini-batches that this thread may return, first that of this call."""
        return self._in_flight.taken(threading.get_ident())

    def _next_data(self) -> Batch:
        if not self._begun:
            raise RuntimeError(
                "an exception came while the epoch was begun, and this iterator cannot go on: "
                "iter(loader) begins an epoch"
            )
        self._forget_returned()
        self._notice_changes()
        while True:
            self._failed = None
            try:
                if not (self._here() or self._in_flight.wanted or self._publish()):
                    break
                job = self._next_job()
                self._publish()
                found, batch = self._batch(job)
                if found:
                    return batch
            except NoFixedLayout as why:
                self._go_whole(str(why))
            except PlanOutdated:
                self._go_python()
            except ManagerOutdated as why:
                self._go_on_without_it(str(why))
            except MemorySharingError as error:
                self._go_without_cuda(error)
        self._batches.check()
        if not self._in_flight.undelivered:  # else another thread's call is to return one
            self._end_epoch()
        raise StopIteration

    def _forget_returned(self) -> None:
        self._epoch_state.settle()
        for job in self._in_flight.returned:
            self._manager.release(job)

    def _notice_changes(self) -> None:
        """Restarts if ``set_epoch`` was called, and applies a new number of workers."""
        passes = self._backend.passes
        if self._num_yielded == 0 and self._epochs.changed(self._options):
            self._begun = False
            self._epochs.restart()
            self._discard()
            if passes is not None and passes.has_state:  # those of workers have gone on
                self._start_manager()
            self._begin()
        wanted = self._state.workers
        if passes is not None:  # the passes depend on the number of workers
            return
        if wanted is not None and wanted != self._workers_wanted:
            self._manager.resize(wanted)
            self._workers_wanted = wanted
            self._fill()

    def _end_epoch(self) -> None:
        self._epochs.finish(self._epoch_state)
        self._backend.epoch_ended()
        self._manager.receive_deferred()
        self._statistics.epoch_ended()
        for each in self._manager.participants:
            each.epoch_ended()
        if not self._persistent_workers:
            self._shutdown_workers()

    def _next_job(self) -> Job:
        """Returns the next mini-batch, and begins to copy the following ones that are done."""
        in_order = self._options.in_order
        if self._delivery is not None or self._pinning is not None:
            while len(self._here()) < _AHEAD and (done := self._manager.take_done(in_order)):
                self._copy(done)
        # The first of those that are here, as ``__next__`` takes it for: out of order, one that was
        # taken later may have been submitted earlier.
        here = self._here()
        job = here[0] if here else self._manager.next_done(in_order)
        job.thread = threading.get_ident()
        self._copy(job)
        return job

    def _copy(self, job: Job) -> None:
        """Begins the copy of a mini-batch to the device, if there is one and its rows are complete.

        A batch that a worker made whole is copied to page-locked memory, if ``pin_memory`` is set.
        """
        if self._pinning is not None:
            self._pinning.begin(job)
        if self._delivery is None or job.failures or job.spilled or not job.indices:
            return
        if job.arriving is None:
            assert isinstance(self._manager, LocalManager)
            arriving = self._manager.deliver_on_device(job)
            self._tracer.copied(job.batch.epoch, job.number, arriving.nbytes, arriving.begun_ns)

    @property
    def _layout(self) -> Layout:
        layout = self._manager.layout
        assert layout is not None
        return layout

    def _batch(self, job: Job) -> tuple[bool, Batch]:
        """Returns whether a mini-batch has samples to deliver, and the batch."""
        count = len(job.indices)
        dropped = {row for row, skip in job.skipped.items() if skip.replaced_by is None}
        if job.result is None:
            self._statistics.add_skipped(job.skipped.values())
            if job.failures:
                first = min(job.failures.values(), key=lambda failure: failure.row)
                error = failure_error(first)
                self._end_with(error, job)
                try:
                    raise error
                finally:
                    del error  # see ``_failed``
            if count and len(dropped) == count:
                self._statistics.batches += 1
                self._epoch_state.deliver(self._returned(job))
                job.returned = True
                return False, None
            try:
                job.result = self._made(job, dropped)
            except (MemoryError, OSError, MemorySharingError):
                raise  # the next call tries again
            except Exception as error:  # the samples cannot be collated
                if not raised_by_handler(error, signal.valid_signals()):  # no sample is made here
                    self._end_with(error, job)
                raise
            self._statistics.samples += self._count_samples(job) - len(dropped)
            self._statistics.batches += 1
            self._tell_participants(count)
        self._tracer.made(job.batch.epoch, job.number, count - len(dropped), job.complete_ns)
        return True, job.result

    def _end_with(self, error: BaseException, job: Job) -> None:
        """Has a mini-batch end with an error, once ``next()`` has raised it."""
        note_what_follows(error, ends_batch=True)
        self._failed = id(error), job, self._returned(job)

    def _returned(self, job: Job) -> Returned:
        return Returned(job.number)

    def _count_samples(self, job: Job) -> int:
        if self._options.auto_collation:
            return len(job.indices)
        return asked_samples(job.indices[0])

    def _made(self, job: Job, dropped: set[int]) -> Batch:
        count = len(job.indices)
        if self._backend.receiver is not None:
            return self._whole_batch(job)
        if count == 0:
            return collate_named([], self._backend.name)  # raises, as it does for DataLoader
        if job.arriving is not None:
            assert self._delivery is not None
            return without_rows(self._delivery.finish(job.arriving), count, dropped)
        if job.spilled or dropped:
            return self._collate(job, dropped)
        batch = self._layout.batch(self._manager.deliver(job), count, count)
        if self._pin_memory and not self._page_locked:
            batch = pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return batch

    def _whole_batch(self, job: Job) -> Batch:
        if not job.indices:  # workers claim nothing of an empty mini-batch
            return self._options.collate_fn([])
        if self._pinning is not None:
            return self._pinning.batch(job)
        batch = self._manager.deliver_whole(job)
        if self._pin_memory:
            batch = pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return batch

    def _tell_participants(self, samples: int) -> None:
        if not self._manager.participants:
            return
        backlog = self._in_flight.completed * self._options.tiny_batch_size
        # Done in the queue, and taken but undelivered (undelivered less wanted), less this one.
        ready = self._in_flight.ready + len(self._in_flight.undelivered)
        for each in self._manager.participants:
            each.delivered(samples, backlog, ready - len(self._in_flight.wanted) - 1)
            each.record(self._statistics)

    def _collate(self, job: Job, dropped: set[int]) -> Batch:
        indices = job.indices
        return collate_rest(
            self._layout,
            self._manager.deliver(job),
            len(indices),
            [(job.rows_of(tiny_batch), pickled) for tiny_batch, pickled in job.spilled.items()],
            dropped,
            lambda row: self._backend.name(indices[row]),
        )

    # ---- another way of making samples ---------------------------------------------------------

    def _go_whole(self, why: str) -> None:
        """Makes workers deliver whole mini-batches. Nothing was delivered before."""
        self._backend = self._backend.no_layout(why)
        self._delivery = self._make_delivery()
        self._start_anew()

    def _go_python(self) -> None:
        """Makes samples with Python workers, because ``worker_init_fn`` changed the dataset."""
        self._backend = self._backend.use_workers_dataset()
        self._start_anew()

    def _go_on_without_it(self, why: str) -> None:
        """Continues with another manager after ``ManagerOutdated``; ``why`` is for subclasses."""
        self._start_anew()

    def _go_without_cuda(self, error: MemorySharingError) -> None:
        """Lets torch pin batches and copy them to the device, after CUDA refused a call.

        Raises:
            MemorySharingError: the device has failed, so torch's calls would fail too.
        """
        if self._state.refused is not None:
            raise error
        if self._delivery is None:
            option, instead = "pin_memory", "torch pins batches"
        else:
            option, instead = "device", "torch copies batches to the device"
        warn_refused(error, instead, option)
        self._state.refused = f"{instead}: {error}"
        if self._delivery is not None:
            wait_for_copies(self._delivery.device)  # before the memory that they read is freed
            self._delivery = None
        self._start_anew()

    def _start_anew(self) -> None:
        """Starts another manager, which makes the mini-batches in flight again."""
        self._take_back()
        self._start_manager()
        self._fill()

    def _take_back(self) -> None:
        """Queues the mini-batches in flight for submission to a manager that does not have them.

        Without those that another thread's call is about to return.
        """
        here = (None, threading.get_ident())
        batches = [job.batch for job in self._in_flight.undelivered if job.thread in here]
        sampled = [
            SampledBatch(each.number, each.indices, each.keys, each.occurrences) for each in batches
        ]
        self._drop_published()
        self._drawn = deque([*sampled, *self._drawn])

    # ---- the end -------------------------------------------------------------------------------

    def _shutdown_workers(self) -> None:
        try:
            self._end_workers()
        finally:
            self._end_counting()

    @property
    def _workers(self) -> Sequence[object]:
        return self._manager.processes
