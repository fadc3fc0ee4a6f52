"""torch's iterator with worker processes, which serves where the native part is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data._utils.worker import _IterableDatasetStopIteration
from torch.utils.data.dataloader import _DatasetKind, _MultiProcessingDataLoaderIter

from fusionloader.data.epochs.epoch_state import EpochState, Returned, for_workers, pickled_states
from fusionloader.engine.delivery.to_device import to_device
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.engine.iterators.tracked import TrackedIterator, read_options
from fusionloader.engine.iterators.worker_loop import Stamped, StampingContext
from fusionloader.engine.manager.stalls import StallWatch
from fusionloader.options.aliases import AnyLoader, Batch, Index, State
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.system.processes import named_death, refuse_in_child
from fusionloader.transforms.executors.fetchers import asked_samples, has_state, made_samples
from fusionloader.transforms.plan.parts import Spent


class _Step(Enum):
    """Progress of ``next()``, which decides what an exception means."""

    WAITING = auto()  # torch holds everything: the next call can go on
    HALF_WAY = auto()  # a batch or indices are only in local variables: an exception loses them
    PASSED_ON = auto()  # an exception that torch raises now is the mini-batch's own error


class WholeBatchIterator(TrackedIterator, _MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """Workers of torch's ``DataLoader``, which make whole mini-batches."""

    _shutdown = True  # torch's __del__ reads it, even if __init__ raised
    _step = _Step.WAITING
    _has_lost = False  # a mini-batch or indices, to an exception

    def __init__(self, loader: AnyLoader, options: LoaderOptions, state: LoaderState) -> None:
        self._track(loader, options, state)
        super().__init__(_WithContext(loader, options, state.epochs.dataset_states()))

    def __next__(self) -> Batch:
        lock, half_way = self._turn.lock, False
        try:
            with lock, self._tracer, self._clock:
                try:
                    batch = self._next()
                finally:
                    half_way = self._step is _Step.HALF_WAY
        except BaseException:
            self._has_lost = self._has_lost or half_way
            raise
        return batch  # no call follows, so no exception can come before

    def _next(self) -> Batch:
        self._step = _Step.WAITING
        if self._has_lost:
            raise RuntimeError(
                "an exception came while a mini-batch was taken from a worker, and this iterator "
                "cannot go on: iter(loader) begins an epoch"
            )
        statistics, epoch_state = self._state.statistics, self._begun()
        counted = statistics.samples
        try:
            while self._to_repeat > 0:
                self._torchs_next()
                self._to_repeat -= 1
                self._step = _Step.WAITING
            batch = self._torchs_next()
        except StopIteration:
            self._remaining.check()
            self._note_end(epoch_state)
            self._ended(epoch_state)
            raise
        except Exception:
            if self._step is _Step.PASSED_ON:
                if self._to_repeat > 0:
                    self._to_repeat -= 1  # it failed in the epoch that goes on, too
                else:
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

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        # Torch waits for persistent workers here, so this wait needs its own watch.
        self._watch = StallWatch(read_options(loader).stalled_after(is_plan=False))
        self._step, self._has_lost = _Step.WAITING, False
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

    def _process_data(self, *arguments: Any) -> Batch:
        batch = super()._process_data(*arguments)  # type: ignore[no-untyped-call]
        self._step = _Step.HALF_WAY  # no error of the mini-batch's own can come any more
        return batch

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
