"""What torch's own iterators lack: epochs that are tracked, resume, and may change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch.utils.data.dataloader import _DatasetKind

from fusionloader.data.epochs.epoch_state import EpochState
from fusionloader.data.epochs.sampling import Draws, numbered_batches
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.engine.iterators.next_call import OneThread
from fusionloader.observe.trace.step_tracer import StepTracer
from fusionloader.options.aliases import AnyLoader, Batch, Index
from fusionloader.options.loader_options import LoaderOptions

Numbered = Iterator[tuple[int, list[Index]]]
"""Mini-batches with their numbers in the epoch."""


class Restart:
    """What ``_reset`` reads of a loader, to begin the same epoch again.

    A reference to the loader would be a cycle, and delay the end of an iterator's workers.
    """

    def __init__(self, loader: AnyLoader, options: LoaderOptions) -> None:
        self.options = options
        self.generator = loader.generator  # this and the next one are read by torch
        self._IterableDataset_len_called = loader._IterableDataset_len_called


def read_options(loader: AnyLoader | Restart) -> LoaderOptions:
    return loader.options if isinstance(loader, Restart) else LoaderOptions.of(loader)


def _not_delivered(batches: Numbered, epoch_state: EpochState) -> Numbered:
    delivered, ahead = epoch_state.delivered, frozenset(epoch_state.ahead)
    for number, batch in batches:
        if number >= delivered and number not in ahead:
            yield number, batch


class TrackedIterator:
    """Mixin for torch's iterators that tracks the epoch and its delivered batches."""

    _epoch_state: EpochState | None = None
    _num_yielded: int
    _sampler_iter: Iterator[Index]

    def _track(self, loader: AnyLoader, options: LoaderOptions, state: LoaderState) -> None:
        self._owner = os.getpid()
        self._turn = OneThread(has_workers=options.num_workers > 0)
        self._restart = Restart(loader, options)
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
            batches = self._epochs.watched(self._options, batches)
            is_iterable = self._options.dataset_kind == _DatasetKind.Iterable
            # Without a dataset state, resuming means to make and drop the batches again.
            repeats = is_iterable and not any(epoch_state.worker_states())
            self._to_repeat = epoch_state.delivered if repeats else 0
            self._remaining = Draws(batches if repeats else _not_delivered(batches, epoch_state))
            self._epoch_state = epoch_state
        return self._epoch_state

    def _begun(self) -> EpochState:
        """Returns the epoch; begins it again if ``set_epoch`` was called before its first batch."""
        failed = self._epoch_state is None  # an exception came while it was begun
        if failed or (self._num_yielded == 0 and self._epochs.changed(self._options)):
            self._epochs.restart()
            self._reset(self._restart)
        return self._begin()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._epoch_state = None
        if not first_iter:
            self._options = read_options(loader)
            self._restart = Restart(loader, self._options)
        super()._reset(loader, first_iter)  # type: ignore[misc]

    def _torchs_next(self) -> Batch:
        return super().__next__()  # type: ignore[misc]

    def _ended(self, epoch_state: EpochState) -> None:
        self._epochs.finish(epoch_state)
        self._state.statistics.epoch_ended()
