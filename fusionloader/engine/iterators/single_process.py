"""torch's iterator without worker processes, for user code with ``num_workers=0``."""

from __future__ import annotations

import copy
import itertools
import reprlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from fusionloader.data.epochs.epoch_state import EpochState, Returned
from fusionloader.engine.delivery.to_device import to_device
from fusionloader.engine.iterators.deferral import Deferral
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.engine.iterators.next_call import next_batch, note_what_follows
from fusionloader.engine.iterators.tracked import TrackedIterator
from fusionloader.options.aliases import AnyLoader, Batch, Index, State
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.system.training_signals import raised_by_handler
from fusionloader.transforms.executors.fetchers import (
    asked_samples,
    fetcher_state,
    has_state,
    make_fetcher,
)


@dataclass(slots=True)
class _Call:
    """A call of ``next()``, and the mini-batch that it is to return.

    Attributes:
        thread: thread that makes it; ``None`` after an exception. Any thread's next call then goes
            on with the mini-batch, because that thread may make none.
        drawn: number and indices of the mini-batch; empty at the end of the epoch, ``None`` once it
            was returned.
        samples: its samples so far, of an iterable dataset.
        before: the dataset's state before the mini-batch, in a tuple of its own; ``None`` if it is
            not known.
        error: what the dataset's iterator has raised, until ``next()`` has raised it.
    """

    thread: int | None
    drawn: list[tuple[int, list[Index]]] | None = None
    samples: list[Any] | None = None
    before: tuple[State | None] | None = None
    error: Exception | None = None

    @property
    def number(self) -> int:
        assert self.drawn
        return self.drawn[0][0]


class _DatasetState:
    """The state of an iterator's dataset, after what ``next()`` has returned.

    Attributes:
        exists: whether the dataset has a state.
        has_fetched: whether a sample has been asked for.
        calls: the iterator's calls of ``next()``.
    """

    def __init__(self, fetcher: Any, given: State | None) -> None:
        """``given``: state that the iterator continues from."""
        self._fetcher, self._given = fetcher, given
        owners = fetcher.dataset, getattr(fetcher, "dataset_iter", None)
        self.exists = any(map(has_state, owners))
        self.has_fetched = False
        self.calls: list[_Call] = []

    def before(self) -> tuple[State | None] | None:
        """Returns the state before a mini-batch, in a tuple; ``None`` if the dataset raises."""
        try:
            return (self._now(),) if self.exists else None
        except Exception as error:  # the loader's state_dict() raises it again
            if raised_by_handler(error):
                raise
            return None

    def after_returned(self) -> State | None:
        """Returns the state to save, at any time and in any thread."""
        while True:
            begun = [(call.before, [*(call.drawn or ())]) for call in self.calls]
            unfinished = {drawn[0][0]: before for before, drawn in begun if drawn and before}
            if unfinished:
                return copy.deepcopy(unfinished[min(unfinished)][0])
            state = self._now()
            now = [(call.before, call.drawn) for call in self.calls]
            if [(id(a), bool(b)) for a, b in begun] == [(id(a), bool(b)) for a, b in now]:
                return state  # no other thread has begun a mini-batch meanwhile

    def _now(self) -> State | None:
        if not self.has_fetched and self._given is not None:
            return copy.deepcopy(self._given)  # a dataset may take it up with its first sample
        return fetcher_state(self._fetcher)


class SingleProcessIterator(TrackedIterator, _SingleProcessDataLoaderIter):  # type: ignore[misc]
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
        self._dataset_state = _DatasetState(self._dataset_fetcher, state)
        if under_way:
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
            self._calls = self._dataset_state.calls = []
            # What an iterable dataset was left by, if not by an error of its own.
            self._left_by: type[BaseException] | None = None
            # The id of the error of this call, if a mini-batch ends with it.
            self._failed: tuple[int, _Call, EpochState, Returned] | None = None
            super()._begin().live = self._dataset_state.after_returned
        return super()._begin()

    def __next__(self) -> Batch:
        lock, failed = self._turn.lock, None
        try:
            with lock, self._tracer, self._clock:
                try:
                    batch, returned = self._next()
                except BaseException as error:
                    failed = self._failed
                    if failed is None or failed[0] != id(error):
                        self._leave()  # before another thread's call begins
                    raise
                finally:
                    self._failed = None
                call, epoch_state = self._call, self._epoch_state
        except BaseException as error:
            if failed is not None and failed[0] == id(error):
                # As below: until here the next call makes this mini-batch again.
                _, call, epoch_state, returned = failed
                epoch_state.returned[returned.number] = returned
                call.drawn = call.samples = call.error = None
            else:
                self._leave()  # again, if the exception came after the block above
            raise
        assert epoch_state is not None
        # No call follows, so no exception can come before the return.
        epoch_state.returned[returned.number] = returned
        call.drawn = call.samples = None
        return batch

    def _leave(self) -> None:
        """Leaves the mini-batch of this call to any thread's: this one may make no further."""
        for each in self._calls[:]:
            if each.thread == threading.get_ident():
                each.thread = None

    def _next(self) -> tuple[Batch, Returned]:
        statistics, epoch_state = self._state.statistics, self._begun()
        epoch_state.settle()
        call = self._call = self._this_call()
        try:
            if self._options.dataset_kind == _DatasetKind.Iterable:
                batch = self._torchs_next()  # torch checks the dataset's length there
                # Without a dataset state, resuming means to make and drop the batches again.
                while epoch_state.has(call.number):
                    call.drawn = call.samples = None
                    batch = self._torchs_next()
            else:
                batch = next_batch(self, self._torchs_next)
        except StopIteration:
            call.drawn = call.samples = None
            if not any(each.drawn for each in self._calls):  # else a call is to return one
                self._ended(epoch_state)
            raise
        statistics.batches += 1
        statistics.samples += self._asked
        self._tracer.made(epoch_state.epoch, call.number, self._asked)
        return to_device(batch, self._options.device), Returned(call.number)

    def _this_call(self) -> _Call:
        me = threading.get_ident()
        calls = [each for each in self._calls if each.thread in (me, None)]
        if not calls:
            self._calls.append(_Call(me))
            return self._calls[-1]
        call = next((each for each in calls if each.drawn), calls[0])
        call.thread = me
        return call

    def _next_data(self) -> Batch:
        call = self._call
        if not call.drawn:
            call.drawn = []
            call.before = self._dataset_state.before()
            self._remaining.take(call.drawn)
            if not call.drawn:
                self._remaining.check()
                raise StopIteration
        self._dataset_state.has_fetched = True
        number, indices = call.drawn[0]
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
        fetcher, epoch_state, call = self._dataset_fetcher, self._epoch_state, self._call
        assert epoch_state is not None
        is_iterable = self._options.dataset_kind == _DatasetKind.Iterable
        if self._left_by is not None:
            raise RuntimeError(
                f"the dataset's iterator was left by {self._left_by.__name__}, and may have lost a "
                "sample. This iterator cannot go on: iter(loader) begins the next epoch"
            )
        try:
            if call.error is not None:  # another exception, such as Ctrl-C, came in its place
                raise call.error
            if not is_iterable:
                return fetcher.fetch(indices)
            if samples := self._draw_samples(asked_samples(indices)):
                return fetcher.collate_fn(samples if fetcher.auto_collation else samples[0])
        except StopIteration:  # ends the epoch, as in torch
            raise
        except Exception as error:
            if raised_by_handler(error):  # the next call makes the same mini-batch
                if call.error is error and len(call.samples or ()) < asked_samples(indices):
                    self._left_by = error.__class__
                call.error = None
                raise
            if hasattr(error, "add_note") and not is_iterable:  # Python 3.11
                error.add_note(f"Mini-batch {number}, indices {reprlib.repr(indices)}.")
            note_what_follows(error, ends_batch=True)
            self._failed = id(error), call, epoch_state, Returned(number)
            raise
        raise StopIteration

    def _draw_samples(self, wanted: int) -> list[Any]:
        """Returns the samples of a mini-batch; empty if an iterable dataset has no more.

        Each is in the list before Python can raise KeyboardInterrupt.
        """
        fetcher, call = self._dataset_fetcher, self._call
        if call.samples is None:
            call.samples = []
        samples = call.samples
        missing = wanted - len(samples)
        if missing and not fetcher.ended:
            # Not islice, which calls iter(): a dataset that is its own iterator begins anew there.
            fresh = map(next, itertools.repeat(fetcher.dataset_iter, missing))
            try:
                samples.extend(fresh)
            except Exception as error:  # of the dataset, or of a handler
                call.error = error
                raise
            except BaseException as error:  # a generator is exhausted after it
                self._left_by = error.__class__
                if len(samples) == wanted:
                    self._left_by = None
                raise
            fetcher.ended = len(samples) < wanted
        if len(samples) < wanted and fetcher.drop_last:
            return []
        return samples


class _Seeded:
    """The loader with a generator of its own, so that the user's is not drawn from."""

    def __init__(self, loader: AnyLoader, seed: int) -> None:
        self._loader = loader
        self._index_sampler: list[Index] = []
        self.generator = torch.Generator().manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
