"""Iterators that make samples in ``next()``, in the training process.

They serve ``num_workers=0`` on a compiled plan or with ``on_error``, and tensors in memory.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fusionloader.data.epochs.epoch_state import EpochState, Returned
from fusionloader.data.epochs.sampling import Draws, SampledBatch, make_keys, undelivered_batches
from fusionloader.data.sources.fingerprint import Fingerprint
from fusionloader.data.sources.tensors import NotGathered, gather
from fusionloader.engine.delivery.host_batches import collate_named
from fusionloader.engine.delivery.to_device import to_device
from fusionloader.engine.iterators.deferral import Deferral
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.engine.iterators.next_call import OneThread, next_batch, note_what_follows
from fusionloader.observe.trace.step_tracer import StepTracer
from fusionloader.options.aliases import AnyLoader, Batch, Index, Sample
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.system.training_signals import raised_by_handler
from fusionloader.transforms.executors.collate import is_of_collate
from fusionloader.transforms.executors.python import SampleKey, Source, make_group
from fusionloader.workers import messages, sample_errors
from fusionloader.workers.sample_errors import BadSample, resolve


class InProcessIterator(_BaseDataLoaderIter):
    """Makes each mini-batch in ``next()``."""

    _is_keyed = True  # whether samples may make random draws
    _ahead = 0  # mini-batches drawn beside the next one
    _why_here = "num_workers=0"

    def __init__(
        self,
        loader: AnyLoader,
        options: LoaderOptions,
        state: LoaderState,
        source: Source,
        renew: Callable[[], Source],
    ) -> None:
        """``renew`` makes a new source of samples after the dataset or a transform changed."""
        super().__init__(loader)
        if self._timeout != 0 and self._num_workers == 0:
            raise AssertionError("timeout needs worker processes: num_workers > 0")
        self._options = options
        self._epochs, self._statistics = state.epochs, state.statistics
        self._deferral = Deferral(options, state.statistics)
        self._clock = state.statistics.clock(options.dataset)
        self._source: Source = source
        self._renew = renew
        self._seen = Fingerprint(options.dataset, whole=True)
        self._tracer = StepTracer(
            state.traces, f"{self._why_here}: the training process makes the samples, inside next()"
        )
        self._epoch_state: EpochState | None = None
        self._batches: Draws[SampledBatch] = Draws(iter(()))
        self._drawn: list[SampledBatch] = []  # some of them are delivered
        self._makers: dict[int, int] = {}  # the thread whose next() has made one of them, by number
        self._due, self._turn = -1, OneThread(has_workers=False)
        self._has_failed = False  # by its own error, not by Ctrl-C or a lack of memory
        # The id of the error of this call, if a mini-batch ends with it.
        self._failed: tuple[int, Returned] | None = None
        self._base_seed = state.epochs.base_seed(int(self._base_seed))
        self._begin()

    def _begin(self) -> EpochState:
        self._clock.begin_epoch()
        self._statistics.workers.user_code = self._runs_user_code
        self._epoch_state = None
        epoch_state = self._epochs.start(self._options, int(self._base_seed))
        batches = undelivered_batches(
            self._options, epoch_state, self._sampler_iter, self._source.count(), self._is_keyed
        )
        self._batches, self._drawn = Draws(self._epochs.watched(self._options, batches)), []
        self._makers = {}
        self._epoch_state = epoch_state  # last: an exception before it has the epoch begun again
        return epoch_state

    def _reset(self, loader: AnyLoader, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._options = LoaderOptions.of(loader)
        self._begin()

    def _next_data(self) -> Batch:
        epoch_state = self._epoch_state
        if epoch_state is None or (self._num_yielded == 0 and self._epochs.changed(self._options)):
            self._epochs.restart()
            self._sampler_iter = iter(self._index_sampler)
            epoch_state = self._begin()
        epoch_state.settle()
        while due := self._next_due():
            self._notice_changes()
            try:
                found, batch = self._make(due, epoch_state)
            except BaseException as error:
                own = isinstance(error, Exception) and not raised_by_handler(error)
                self._has_failed = self._has_failed and own
                if self._has_failed:  # the epoch goes on after this mini-batch
                    self._makers[due.number] = threading.get_ident()
                    self._failed = id(error), Returned(due.number)
                if isinstance(error, Exception):
                    note_what_follows(error, ends_batch=self._has_failed)
                raise
            if found:
                self._makers[due.number] = threading.get_ident()
                self._due = due.number
                return batch
            epoch_state.deliver(Returned(due.number))
        self._batches.check()
        if all(epoch_state.has(each.number) for each in self._drawn):  # none is another thread's
            self._epochs.finish(epoch_state)
        raise StopIteration

    def _next_due(self) -> SampledBatch | None:
        """Returns the next mini-batch: the last one again if Ctrl-C came before it was returned."""
        state, drawn = self._epoch_state, self._drawn
        assert state is not None
        while drawn and state.has(drawn[0].number):
            self._makers.pop(drawn[0].number, None)
            del drawn[0]
        me, place = threading.get_ident(), 0
        while place < len(drawn):
            number = drawn[place].number
            if self._makers.get(number, me) == me and not state.has(number):
                break
            place += 1  # another thread's call returns it
        for _ in range(self._ahead + 1 + place - len(drawn)):
            self._batches.take(drawn)
        self._has_failed = False
        return drawn[place] if place < len(drawn) else None

    def _make(self, due: SampledBatch, epoch_state: EpochState) -> tuple[bool, Batch]:
        """Returns whether a mini-batch has samples to deliver, and the batch."""
        counters, (number, *described) = self._statistics, due
        indices = described[0]
        keys = [
            SampleKey(
                index, epoch_state.seed, epoch_state.epoch, key, count, self._group(number, row)
            )
            for row, (index, key, count) in enumerate(zip(*described, strict=True))
        ]
        start = time.perf_counter()
        with self._fetching():
            made = [self._load(row, key) for row, key in enumerate(keys)]
        counters.workers.add_spent(
            len(indices), time.perf_counter() - start, self._source.take_spent()
        )
        samples = list(itertools.chain.from_iterable(made))
        if not samples and indices:
            return False, None
        try:
            batch = self._collate(samples, indices)  # raises for an empty batch, as DataLoader does
        except Exception as error:
            passing = isinstance(error, (MemoryError, OSError)) or raised_by_handler(error)
            self._has_failed = not passing
            raise
        counters.batches += 1
        counters.samples += len(samples)
        self._tracer.made(epoch_state.epoch, number, len(samples))
        if self._pin_memory:
            batch = pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return True, batch

    def _fetching(self) -> AbstractContextManager[None]:
        if not self._runs_user_code:
            return nullcontext()  # no user code, so nothing opens images
        return self._deferral.fetching()

    @property
    def _runs_user_code(self) -> bool:
        return getattr(self._source, "has_tail", True)  # which sources with a plan have

    def _notice_changes(self) -> None:
        """Uses a dataset that was changed within the epoch in its new state, as torch does."""
        seen = Fingerprint(self._options.dataset, whole=True)
        if seen != self._seen:
            self._source, self._seen = self._renew(), seen

    def _group(self, number: int, row: int) -> int:
        if self._options.augment_per == "sample":
            return 0
        return make_group(number, row, self._options.tiny_batch_size)

    def _collate(self, samples: list[Sample], indices: list[Index]) -> Batch:
        if not is_of_collate(self._options.collate_fn, "default_collate"):
            return self._options.collate_fn(samples if self._options.auto_collation else samples[0])
        whole = len(samples) == len(indices)  # otherwise positions do not match: some were left out

        def name(place: int) -> str:
            key = SampleKey(indices[place], 0, 0, 0, 0)
            return self._source.name(key) if whole else f"sample {place}"

        return collate_named(samples, name)

    def __next__(self) -> Batch:
        lock, failed = self._turn.lock, None
        try:
            with lock, self._tracer, self._clock:
                try:
                    batch = to_device(next_batch(self, super().__next__), self._options.device)
                finally:
                    failed, self._failed = self._failed, None
                    epoch_state = self._epoch_state
                returned = Returned(self._due)
        except BaseException as error:
            if failed is not None and failed[0] == id(error) and epoch_state is not None:
                # As below: until here the next call makes this mini-batch again.
                epoch_state.returned[failed[1].number] = failed[1]
            else:  # this thread may make no further call
                for number, maker in [*self._makers.items()]:
                    if maker == threading.get_ident():
                        self._makers.pop(number, None)
            raise
        assert epoch_state is not None
        # No call follows, so no exception can come between this and the return.
        epoch_state.returned[returned.number] = returned
        return batch

    def _load(self, row: int, key: SampleKey) -> list[Sample]:
        """Returns a list of the sample or its substitute; empty if it is left out."""
        try:
            return [self._source.load(key)]
        except Exception as error:
            if raised_by_handler(error):
                raise
            name = self._source.name(key)
            failure = sample_errors.capture(error, "in the training process", name)
            draws = (key.seed, key.epoch, key.key, key.occurrence)
            try:
                found = resolve(
                    self._options.on_error,
                    failure,
                    draws,
                    self._source.count(),
                    lambda index: self._source.load(key.replaced(index)),
                )
            except BadSample:
                self._has_failed = True
                if hasattr(error, "add_note"):
                    error.add_note(f"Sample: {name}")
                raise error from None
        self._statistics.add_skipped([messages.SampleSkipped(0, row, found.index, failure)])
        return [] if found.index is None else [found.sample]


class GatheredIterator(InProcessIterator):
    """Gathers mini-batches of tensors in memory, in ``next()``, whatever ``num_workers`` is.

    It starts no worker, because a gather costs less than taking a batch over from a worker.
    """

    _is_keyed = False
    _why_here = "tensors in memory"
    _workers: Sequence[object] = ()  # programs that ask DataLoader's iterator for its workers

    def _begin(self) -> EpochState:
        epoch_state = super()._begin()
        # As many as torch with workers draws now; one more is drawn for each that is returned.
        self._ahead = self._options.in_flight if self._options.num_workers > 0 else 0
        for _ in range(self._ahead):
            self._batches.take(self._drawn)
        return epoch_state

    def _notice_changes(self) -> None:
        """Does nothing, because each gather looks at the dataset."""

    def _make(self, due: SampledBatch, epoch_state: EpochState) -> tuple[bool, Batch]:
        start = time.perf_counter()
        try:
            batch = gather(self._options.dataset, due.indices)
        except NotGathered:
            indices = due.indices
            due = due._replace(keys=make_keys(indices), occurrences=[0] * len(indices))
            super()._notice_changes()
            return super()._make(due, epoch_state)
        count, statistics = len(due.indices), self._statistics
        statistics.workers.made += count
        statistics.workers.worker_seconds += time.perf_counter() - start
        statistics.batches += 1
        statistics.samples += count
        self._tracer.made(epoch_state.epoch, due.number, count)
        if self._pin_memory:
            batch = pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return True, batch
