"""torch's own iterators, extended to resume and to notice a changed epoch.

They serve user code if ``num_workers=0``, and everything if the native part is missing.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import reprlib
import sys
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any

import torch
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.worker import _IterableDatasetStopIteration
from torch.utils.data.dataloader import (
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from fusionloader.data.deferred import counts
from fusionloader.data.epochs.epoch_state import EpochState, Returned, for_workers, pickled_states
from fusionloader.data.epochs.sampling import Draws, numbered_batches
from fusionloader.engine.delivery.to_device import to_device
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.engine.iterators.next_call import note_what_follows
from fusionloader.engine.iterators.worker_loop import Stamped, StampingContext
from fusionloader.engine.manager.stalls import StallWatch
from fusionloader.observe.statistics.loader_statistics import Statistics
from fusionloader.observe.trace.step_tracer import StepTracer
from fusionloader.options.aliases import AnyLoader, Batch, Index, State
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.system.native_part import missing
from fusionloader.system.processes import OneThread, named_death, refuse_in_child
from fusionloader.transforms.executors.fetchers import (
    asked_samples,
    fetcher_state,
    has_state,
    made_samples,
    make_fetcher,
)
from fusionloader.transforms.plan.parts import Spent

# Mini-batches in which images are looked for: the first ones, and then one in so many.
_LOOKED_AT = 4
_LOOKED_AT_EVERY = 100

Numbered = Iterator[tuple[int, list[Index]]]
"""Mini-batches with their numbers in the epoch."""


def detached(loader: AnyLoader) -> AnyLoader:
    """Returns a shallow copy of the loader, without its iterator, for the iterator to keep.

    Without a reference cycle, dropping the last reference to an iterator ends its workers at once.
    """
    view = copy.copy(loader)
    view._iterator = None
    return view


def _not_delivered(batches: Numbered, epoch_state: EpochState) -> Numbered:
    delivered, ahead = epoch_state.delivered, frozenset(epoch_state.ahead)
    for number, batch in batches:
        if number >= delivered and number not in ahead:
            yield number, batch


class _Step(Enum):
    """Progress of ``next()``, which decides what an exception means."""

    WAITING = auto()  # torch holds everything: the next call can go on
    HALF_WAY = auto()  # a batch or indices are only in local variables: an exception loses them
    PASSED_ON = auto()  # an exception that torch raises now is the mini-batch's own error


class _Tracked:
    """Mixin for torch's iterators that tracks the epoch and its delivered batches."""

    _epoch_state: EpochState | None = None
    _num_yielded: int
    _sampler_iter: Iterator[Index]

    def _track(self, loader: AnyLoader, options: LoaderOptions, state: LoaderState) -> None:
        self._owner = os.getpid()
        self._turn = OneThread()
        self._view = detached(loader)
        self._options = options
        self._state = state
        self._epochs = state.epochs
        self._clock = state.statistics.clock(options.dataset)
        self._tracer = StepTracer(state.traces, "whole batches are made in torch's own loop")

    @property
    def _base_seed(self) -> int:
        return self._seed

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        self._seed = self._epochs.base_seed(drawn)

    def _begin(self) -> EpochState:
        if self._epoch_state is None:
            self._clock.begin_epoch()
            state = self._state.statistics.workers
            state.wanted, state.user_code = max(self._options.num_workers, 1), True
            epoch_state = self._epochs.start(self._options, self._base_seed)
            batches = numbered_batches(self._options, epoch_state, self._sampler_iter)
            self._remaining = Draws(_not_delivered(batches, epoch_state))
            stateful = any(epoch_state.worker_states())
            self._to_repeat = 0 if stateful else epoch_state.delivered
            self._epoch_state = epoch_state
        return self._epoch_state

    def _begun(self) -> EpochState:
        """Returns the epoch; begins it again if ``set_epoch`` was called before its first batch."""
        failed = self._epoch_state is None  # an exception came while it was begun
        if failed or (self._num_yielded == 0 and self._epochs.changed(self._options)):
            self._epochs.restart()
            self._reset(self._view)
        return self._begin()

    def _reset(self, loader: AnyLoader, first_iter: bool = False) -> None:
        self._epoch_state = None
        if not first_iter:
            self._view, self._options = detached(loader), LoaderOptions.of(loader)
        super()._reset(loader, first_iter)  # type: ignore[misc]

    def _torchs_next(self) -> Batch:
        return super().__next__()  # type: ignore[misc]

    def _ended(self, epoch_state: EpochState) -> None:
        self._epochs.finish(epoch_state)
        self._state.statistics.epoch_ended()


class WholeBatchIterator(_Tracked, _MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """Workers of torch's ``DataLoader``, which make whole mini-batches."""

    _shutdown = True  # torch's __del__ reads it, even if __init__ raised
    _step = _Step.WAITING

    def __init__(self, loader: AnyLoader, options: LoaderOptions, state: LoaderState) -> None:
        self._track(loader, options, state)
        super().__init__(_WithContext(loader, options, state.epochs.dataset_states()))

    def __next__(self) -> Batch:
        with self._turn, self._tracer, self._clock:
            batch = self._next()
        self._step = _Step.WAITING  # no call follows, so no exception can come before the return
        return batch

    def _next(self) -> Batch:
        if self._step is _Step.HALF_WAY:
            raise RuntimeError(
                "an exception came while a mini-batch was taken from a worker, and this iterator "
                "cannot go on: iter(loader) begins an epoch"
            )
        statistics, epoch_state = self._state.statistics, self._begun()
        counted = statistics.samples
        self._step = _Step.WAITING
        try:
            if self._options.dataset_kind == _DatasetKind.Iterable:
                # Without a dataset state, resuming means to make and drop the batches again.
                while self._to_repeat > 0:
                    self._torchs_next()
                    self._to_repeat -= 1
            batch = self._torchs_next()
        except StopIteration:
            self._remaining.check()
            self._note_end(epoch_state)
            self._ended(epoch_state)
            raise
        except Exception:
            if self._step is _Step.PASSED_ON:
                self._note_delivered(epoch_state)
            raise
        self._step = _Step.HALF_WAY
        number = epoch_state.delivered
        self._note_delivered(epoch_state)
        statistics.batches += 1
        self._tracer.made(epoch_state.epoch, number, statistics.samples - counted)
        return to_device(batch, self._options.device)

    # ---- which mini-batch ----------------------------------------------------------------------

    def _begin(self) -> EpochState:
        if self._epoch_state is None:
            self._forget_tasks()
            epoch_state = super()._begin()
            epoch_state.workers = for_workers(epoch_state.workers, self._num_workers)
            if any(epoch_state.workers):  # workers resume, and so does the order of their turns
                for _ in range((epoch_state.last_worker + 1) % self._num_workers):
                    next(self._worker_queue_idx_cycle)
        return super()._begin()

    def _forget_tasks(self) -> None:
        # All by task, the number that torch gives a mini-batch.
        self._numbers: dict[int, int] = {}  # number in the epoch
        self._asked: dict[int, int] = {}  # number of samples
        self._made_by: dict[int, int] = {}  # worker, once the mini-batch has arrived
        self._states: dict[int, bytes] = {}  # pickled state of the worker's dataset
        self._ends: dict[int, int] = {}  # worker whose iterable dataset ended at this task

    def _next_index(self) -> list[Index]:
        self._begin()
        number, indices = next(self._remaining)
        self._numbers[self._send_idx] = number
        self._asked[self._send_idx] = asked_samples(indices)
        return indices

    def _get_data(self) -> Any:
        self._arrived, data = super()._get_data()  # type: ignore[no-untyped-call]
        if type(self._arrived) is Stamped:
            self._arrived = self._take_stamp(self._arrived, data)
        if isinstance(data, _IterableDatasetStopIteration):
            self._ends[self._arrived] = data.worker_id
        elif self._arrived in self._task_info:
            self._made_by[self._arrived] = self._task_info[self._arrived][0]
        return self._arrived, data

    def _take_stamp(self, stamp: Stamped, data: Any) -> int:
        """Stores the dataset state and time that came with a mini-batch; returns its task."""
        if stamp.state is not None:
            self._states[stamp.task] = stamp.state
        samples = self._asked.get(stamp.task, 0)
        if isinstance(data, _IterableDatasetStopIteration):
            samples = 0
        elif self._options.dataset_kind == _DatasetKind.Iterable:
            samples = made_samples(data, samples)
        self._asked[stamp.task] = samples
        self._state.statistics.workers.add_spent(samples, stamp.seconds, Spent())
        return stamp.task

    def _note_delivered(self, epoch_state: EpochState) -> None:
        task = self._rcvd_idx - 1 if self._in_order else self._arrived
        epoch_state.last_worker = self._made_by.pop(task, -1)
        state = self._states.pop(task, None)
        if state is not None:
            epoch_state.workers[epoch_state.last_worker] = state
        self._note_end(epoch_state)
        self._state.statistics.samples += self._asked.pop(task)
        number = self._numbers.pop(task)
        if self._options.dataset_kind == _DatasetKind.Iterable:
            number = epoch_state.delivered  # workers end at different times, so it is only a count
        epoch_state.deliver(Returned(number))

    def _note_end(self, epoch_state: EpochState) -> None:
        """Records the final states of ended datasets, once all their batches are delivered."""
        waiting = {w for task, w in self._made_by.items() if task >= self._rcvd_idx}
        for task, worker in list(self._ends.items()):
            if worker not in waiting or not self._in_order:
                del self._ends[task]
                epoch_state.workers[worker] = self._states.pop(task, epoch_state.workers[worker])

    # ---- waiting -------------------------------------------------------------------------------

    def _reset(self, loader: AnyLoader, first_iter: bool = False) -> None:
        # Torch waits for persistent workers here, so this wait needs its own watch.
        self._watch = StallWatch(LoaderOptions.of(loader).stalled_after(is_plan=False))
        self._step = _Step.WAITING
        super()._reset(loader, first_iter)

    def _next_data(self) -> Batch:
        refuse_in_child(self._owner)
        self._watch = StallWatch(self._options.stalled_after(is_plan=False))
        return super()._next_data()  # type: ignore[no-untyped-call]

    def _try_get_data(self, timeout: float = MP_STATUS_CHECK_INTERVAL) -> Any:
        if self._timeout > 0:  # torch raises its own error then
            return self._received(timeout)
        until = max(self._watch.seconds_left, 0.05)
        found = self._received(min(timeout, until))
        if not found[0]:
            self._watch.check(self._worker_report)
        return found

    def _shutdown_workers(
        self,
        getpid: Callable[[], int] = os.getpid,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        # These are arguments because torch calls this from __del__, and Python may have cleared
        # this module by then.
        if getpid() != self._owner:  # in a forked child the workers belong to the parent
            return
        ends = [queue._close for queue in getattr(self, "_index_queues", ()) if queue._close]
        if not (is_finalizing() or all(end.still_active() for end in ends)):
            # The garbage collector closed these queues first, so no message can end the workers.
            for process in self._workers:
                process.terminate()
        super()._shutdown_workers()

    def _received(self, timeout: float) -> Any:
        self._step = _Step.WAITING
        with named_death(self._workers):
            found = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
            if found[0]:
                self._step = _Step.HALF_WAY
        return found

    def _try_put_index(self) -> None:
        self._step = _Step.HALF_WAY
        super()._try_put_index()
        self._step = _Step.PASSED_ON

    def _worker_report(self) -> str:
        at: dict[int, int] = {}
        for task, known in sorted(self._task_info.items()):
            if len(known) == 1:  # torch appends the batch when it arrives
                at.setdefault(known[0], task)
        places = []
        for worker, process in enumerate(self._workers):
            place = f"at mini-batch {self._numbers.get(at[worker])}" if worker in at else "is idle"
            places.append(f"worker {worker} (pid {process.pid}) {place}")
        return "; ".join(places)


class SingleProcessIterator(_Tracked, _SingleProcessDataLoaderIter):  # type: ignore[misc]
    """torch's iterator for ``num_workers=0``."""

    def __init__(self, loader: AnyLoader, options: LoaderOptions, shared: LoaderState) -> None:
        self._track(loader, options, shared)
        self._deferral = Deferral(options, shared.statistics)
        state = (shared.epochs.dataset_states() or [None])[0]
        # The state may include the global generator's, taken within an epoch, after its base seed
        # was drawn. So torch's __init__ must not draw from that generator again.
        under_way = state is not None and not state["between"]
        given = _Seeded(loader, 0) if under_way else loader
        self._dataset_fetcher: Any = None
        self._dataset_fetcher = make_fetcher(
            lambda: self._make_fetcher(given), loader.dataset, state
        )
        self._index_sampler = loader._index_sampler
        self._sampler_iter = iter(self._index_sampler)
        self._begin()

    def _make_fetcher(self, loader: Any) -> Any:
        if self._dataset_fetcher is None:
            super().__init__(loader)  # makes one
            return self._dataset_fetcher
        arguments = (self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn)
        create: Callable[..., Any] = _DatasetKind.create_fetcher
        return create(*arguments, self._drop_last)

    def _begin(self) -> EpochState:
        if self._epoch_state is None:
            # The mini-batch that was drawn and not returned: number and indices, and samples of an
            # iterable dataset. None once it was returned; the numbers are empty at the end.
            self._drawn: list[tuple[int, list[Index]]] | None = None
            self._samples: list[Any] | None = None
            self._left_by: BaseException | None = None  # what an iterable dataset was left by
            fetcher = self._dataset_fetcher
            super()._begin().live = lambda: fetcher_state(fetcher)
        return super()._begin()

    def __next__(self) -> Batch:
        with self._turn, self._tracer, self._clock:
            batch, returned = self._next()
        assert self._epoch_state is not None
        # No call follows, so no exception can come before the return.
        self._epoch_state.returned = returned
        self._drawn = self._samples = None
        return batch

    def _next(self) -> tuple[Batch, Returned]:
        statistics, epoch_state = self._state.statistics, self._begun()
        epoch_state.settle()
        try:
            if self._options.dataset_kind == _DatasetKind.Iterable:
                # Without a dataset state, resuming means to make and drop the batches again.
                while self._to_repeat > 0:
                    self._torchs_next()
                    self._to_repeat, self._drawn, self._samples = self._to_repeat - 1, None, None
                batch = self._torchs_next()  # torch checks the dataset's length there
                number = epoch_state.delivered
            else:
                batch = next_batch(self, self._torchs_next)
                number = self._drawn[0][0]  # type: ignore[index]  # made a moment ago
        except StopIteration:
            self._ended(epoch_state)
            raise
        statistics.batches += 1
        statistics.samples += self._asked
        self._tracer.made(epoch_state.epoch, number, self._asked)
        return to_device(batch, self._options.device), Returned(number)

    def _next_data(self) -> Batch:
        if self._drawn is None:
            self._drawn = []
        if not self._drawn:
            self._remaining.take(self._drawn)
            if not self._drawn:
                self._remaining.check()
                raise StopIteration
        number, indices = self._drawn[0]
        self._asked = asked_samples(indices)
        workers, start = self._state.statistics.workers, time.perf_counter()
        with self._deferral.fetching():
            batch = self._fetch(number, indices)
        workers.made += self._asked
        workers.worker_seconds += time.perf_counter() - start
        if self._pin_memory:
            batch = pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return batch

    def _fetch(self, number: int, indices: list[Index]) -> Batch:
        """Makes a mini-batch. An error of user code stands for it; the next one follows."""
        fetcher, epoch_state = self._dataset_fetcher, self._epoch_state
        assert epoch_state is not None
        is_iterable = self._options.dataset_kind == _DatasetKind.Iterable
        if self._left_by is not None:
            raise RuntimeError(
                f"the dataset's iterator was left by {type(self._left_by).__name__}, and may have "
                "lost a sample. This iterator cannot go on: iter(loader) begins the next epoch"
            ) from self._left_by
        try:
            if not is_iterable:
                return fetcher.fetch(indices)
            if samples := self._draw_samples(asked_samples(indices)):
                return fetcher.collate_fn(samples if fetcher.auto_collation else samples[0])
        except StopIteration:  # ends the epoch, as in torch
            raise
        except Exception as error:
            returned = Returned(epoch_state.delivered if is_iterable else number)
            if hasattr(error, "add_note") and not is_iterable:  # Python 3.11
                error.add_note(f"Mini-batch {number}, indices {reprlib.repr(indices)}.")
            note_what_follows(error, ends_batch=True)
            epoch_state.returned = returned
            self._drawn = self._samples = None
            raise
        raise StopIteration

    def _draw_samples(self, wanted: int) -> list[Any]:
        """Returns the samples of a mini-batch; empty if an iterable dataset has no more.

        Each is in the list before Python can raise KeyboardInterrupt.
        """
        fetcher = self._dataset_fetcher
        if self._samples is None:
            self._samples = []
        missing = wanted - len(self._samples)
        if missing and not fetcher.ended:
            fresh = itertools.islice(fetcher.dataset_iter, missing)
            try:
                self._samples.extend(fresh)
            except Exception:
                raise
            except BaseException as error:  # a generator is exhausted after it
                if len(self._samples) < wanted:
                    self._left_by = error
                raise
            fetcher.ended = len(self._samples) < wanted
        if len(self._samples) < wanted and fetcher.drop_last:
            return []
        return self._samples


class _WithContext:
    """The loader with a context whose workers load and report the states of their datasets."""

    def __init__(
        self, loader: AnyLoader, options: LoaderOptions, states: list[State | None] | None
    ) -> None:
        self._loader = loader
        context: Any = options.multiprocessing_context
        if options.pool is not None:  # not on Linux, so the pool has no processes
            context = options.pool.multiprocessing_context
        self.multiprocessing_context = context = context or torch.multiprocessing
        if options.dataset_kind == _DatasetKind.Iterable or has_state(options.dataset):
            given = for_workers(pickled_states(states or []), options.num_workers)
            self.multiprocessing_context = StampingContext(context, given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def defers(options: LoaderOptions) -> bool:
    return options.deferred_images == "auto" and missing() is None


def next_batch(iterator: Any, torchs: Callable[[], Batch]) -> Batch:
    """Returns what ``torchs``, the ``__next__`` of torch's class, returns.

    If no profiler runs, it skips torch's profiler entry, which costs as much as a small batch.
    """
    if torch.autograd.profiler._is_profiler_enabled:
        return torchs()
    batch: Batch = iterator._next_data()
    iterator._num_yielded += 1
    return batch


class Deferral:
    """Defers images in this thread while the training process fetches a mini-batch.

    Installing the patches costs as much as a small mini-batch. If the first mini-batches open no
    image, the patches are installed for one in a hundred only.
    """

    def __init__(self, options: LoaderOptions, statistics: Statistics) -> None:
        self._options, self._statistics = options, statistics
        self._fetches = 0  # since the last one that opened an image

    def fetching(self) -> contextlib.AbstractContextManager[None]:
        self._fetches += 1
        looks = self._fetches <= _LOOKED_AT or self._fetches % _LOOKED_AT_EVERY == 0
        if not looks or not defers(self._options):
            return contextlib.nullcontext()
        return self._deferring()

    @contextlib.contextmanager
    def _deferring(self) -> Iterator[None]:
        from fusionloader.data.deferred.scope import deferring

        try:
            with deferring():
                yield
        finally:
            counted = counts.take()
            if counted:
                self._fetches = 0
                self._statistics.workers.add_spent(0, 0.0, counted.take_spent())
                self._statistics.deferred.add(counted)


class _Seeded:
    """The loader with a generator of its own, so that the user's is not drawn from."""

    def __init__(self, loader: AnyLoader, seed: int) -> None:
        self._loader = loader
        self._index_sampler: list[Index] = []
        self.generator = torch.Generator().manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
