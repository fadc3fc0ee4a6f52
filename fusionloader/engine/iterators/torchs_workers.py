"""torch's iterator with worker processes, which serves where the native part is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import Enum, auto
from signal import valid_signals
from typing import Any

import torch
from torch._utils import ExceptionWrapper
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
from fusionloader.system.training_signals import raised_by_handler
from fusionloader.transforms.executors.fetchers import asked_samples, has_state, made_samples
from fusionloader.transforms.plan.parts import Spent


class _Step(Enum):
    """Progress of ``next()``, which decides what an exception means."""

    WAITING = auto()  # torch holds everything: the next call can go on
    HALF_WAY = auto()  # a batch or indices may be in local variables only: an exception loses them
    PASSED_ON = auto()  # as HALF_WAY, but torch is about to raise the mini-batch's own error


class WholeBatchIterator(TrackedIterator, _MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """Workers of torch's ``DataLoader``, which make whole mini-batches."""

    _shutdown = True  # torch's __del__ reads it, even if __init__ raised
    _step = _Step.WAITING
    _has_lost = False  # a mini-batch or indices, to an exception
    _is_error = False  # whether a mini-batch is an error
    _failed: tuple[int, EpochState, Returned] | None = None  # if a call ends a mini-batch by error

    def __init__(self, loader: AnyLoader, options: LoaderOptions, state: LoaderState) -> None:
        self._track(loader, options, state)
        super().__init__(_WithContext(loader, options, state.epochs.dataset_states()))

    @property
    def fixed_workers(self) -> int:
        """Number of workers: another number takes another iterator."""
        return int(self._num_workers)

    def __next__(self) -> Batch:
        lock, lost, failed = self._turn.lock, False, None
        try:
            with lock, self._tracer, self._clock:
                lost, self._step, self._failed = True, _Step.WAITING, None
                try:
                    batch, returned = self._next()
                finally:
                    lost, failed = self._step is not _Step.WAITING, self._failed
                epoch_state = self._epoch_state
        except BaseException as error:
            if failed is not None and failed[0] == id(error):
                _, epoch_state, returned = failed
                epoch_state.returned[returned.number] = returned
            else:
                self._has_lost = self._has_lost or lost
            raise
        assert epoch_state is not None
        # No call follows, so no exception can come before the return.
        epoch_state.returned[returned.number] = returned
        return batch

    def _next(self) -> tuple[Batch, Returned]:
        if self._has_lost:
            raise RuntimeError(
                "an exception came while a mini-batch was taken from a worker, and this iterator "
                "cannot go on: iter(loader) begins an epoch"
            )
        statistics, epoch_state = self._state.statistics, self._begun()
        epoch_state.settle()
        counted, self._step = statistics.samples, _Step.HALF_WAY
        try:
            while self._to_repeat > 0:
                self._torchs_next()
                self._to_repeat -= 1
            batch = self._torchs_next()
        except StopIteration:
            self._step = _Step.WAITING  # torch raises it again
            self._remaining.check()
            self._note_ends(epoch_state)
            self._ended(epoch_state)
            raise
        except Exception as error:
            if self._step is _Step.PASSED_ON and not raised_by_handler(error, valid_signals()):
                if self._to_repeat > 0:  # it failed in the epoch that goes on, too
                    self._to_repeat -= 1
                    self._step = _Step.WAITING
                else:
                    # The error's id: with itself, the garbage collector would free this iterator.
                    self._failed = id(error), epoch_state, self._returned(epoch_state)
            raise
        self._step = _Step.HALF_WAY
        returned = self._returned(epoch_state)
        statistics.batches += 1
        self._tracer.made(epoch_state.epoch, returned.number, statistics.samples - counted)
        return to_device(batch, self._options.device), returned

    # ---- which mini-batch ----------------------------------------------------------------------

    def _begin(self) -> EpochState:
        if self._epoch_state is None:
            self._forget_tasks()
            epoch_state = super()._begin()
            epoch_state.workers = for_workers(epoch_state.workers, self._num_workers)
            if any(epoch_state.workers):  # workers resume, and so does the order of their turns
                for _ in range((epoch_state.last_worker + 1) % self._num_workers):
                    next(self._worker_queue_idx_cycle)
            self._position = epoch_state.delivered  # of an iterable dataset's next mini-batch
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

    def _returned(self, epoch_state: EpochState) -> Returned:
        task = self._rcvd_idx - 1 if self._in_order else self._arrived
        worker, state = self._made_by.pop(task, -1), self._states.pop(task, None)
        state = self._note_ends(epoch_state, worker) or state
        self._state.statistics.samples += self._asked.pop(task)
        number = self._numbers.pop(task)
        if self._options.dataset_kind == _DatasetKind.Iterable:
            number = self._position  # workers end at different times, so it is only a count
            self._position += 1
        return Returned(number, worker, state)

    def _note_ends(self, epoch_state: EpochState, returned: int = -1) -> bytes | None:
        """Records the final states of ended datasets, once all their batches are delivered.

        The final state of the worker whose mini-batch is being returned is returned instead.
        """
        waiting = {w for task, w in self._made_by.items() if task >= self._rcvd_idx}
        final = None
        for task, worker in list(self._ends.items()):
            if worker not in waiting or not self._in_order:
                state = self._states.get(task)
                if worker == returned:
                    final = state
                elif state is not None:
                    epoch_state.workers[worker] = state
                self._ends.pop(task, None)
                self._states.pop(task, None)
        return final

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
        self._step = _Step.WAITING  # all batches are there, or nobody wants them
        ends = [queue._close for queue in getattr(self, "_index_queues", ()) if queue._close]
        if not (is_finalizing() or all(end.still_active() for end in ends)):
            # The garbage collector closed these queues first, so no message can end the workers.
            for process in self._workers:
                process.terminate()
        super()._shutdown_workers()

    def _received(self, timeout: float) -> Any:
        with named_death(self._workers):
            self._step = _Step.WAITING
            arrived = self._wait(timeout)
            self._step = _Step.HALF_WAY  # an exception while torch reads a message loses it
            found = super()._try_get_data(timeout if arrived else 0)  # type: ignore[no-untyped-call]
            if not found[0]:
                self._step = _Step.WAITING
        return found

    def _wait(self, timeout: float) -> bool:
        """Waits for a message, but does not take it. Returns whether there is one."""
        queue: Any = self._data_queue
        if hasattr(queue, "_reader"):
            return bool(queue._reader.poll(timeout))
        with queue.not_empty:  # of the thread that pins batches
            return bool(queue.not_empty.wait_for(queue._qsize, timeout))

    def _try_put_index(self) -> None:
        super()._try_put_index()
        if self._is_error:
            self._step = _Step.PASSED_ON

    def _process_data(self, data: Any, *arguments: Any) -> Batch:
        self._is_error = isinstance(data, ExceptionWrapper)
        try:
            return super()._process_data(data, *arguments)  # type: ignore[no-untyped-call]
        finally:
            self._is_error = False

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
