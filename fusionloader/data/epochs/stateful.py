"""Samplers with a ``state_dict``, and passes that resume from such a state."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeGuard

from torch.utils.data import BatchSampler

from fusionloader.options.aliases import Index, State
from fusionloader.transforms.executors.fetchers import Stateful, copy_state, has_state, load_state


def resting_state(sampler: object) -> State | None:
    """Returns the state of a batch sampler between passes, in the form of ``SamplerRun.state``."""
    owner = find_stateful_sampler(sampler)
    if owner is None:
        return None
    return {"sampler": copy_state(owner), "iterator": None, "ended": False}


def find_stateful_sampler(sampler: object) -> Stateful | None:
    """Returns the stateful one of a batch sampler and the sampler in it, or ``None``."""
    owner = sampler.sampler if is_plain_batch_sampler(sampler) else sampler
    return owner if has_state(owner) else None


def is_plain_batch_sampler(sampler: object) -> TypeGuard[BatchSampler]:
    """Whether a sampler forms mini-batches with ``BatchSampler``'s own ``__iter__``."""
    return getattr(type(sampler), "__iter__", None) is BatchSampler.__iter__


def batches_before(sampler: object, state: State) -> Iterator[Index]:
    """Yields the batches of a pass before ``state``, if the sampler has ``batches_before``."""
    method = getattr(sampler, "batches_before", None)
    if callable(method):
        yield from method(state["sampler"])


class SamplerRun:
    """One pass over a loader's batch sampler.

    torch's ``BatchSampler`` has no state, but the sampler in it or that sampler's iterator may.
    Therefore this class holds the inner iterator and forms the batches from it.
    """

    def __init__(self, sampler: Any, fresh: Iterator[Index]) -> None:
        """``fresh`` is a new iterator over ``sampler`` that has yielded nothing yet."""
        self._batches = fresh
        self._outer = sampler
        self._within = is_plain_batch_sampler(sampler)
        self._ended = [False]  # shared with the generator, which must not refer to this object
        if self._within:
            self._owner = sampler.sampler
            self._hold(iter(self._owner))
        else:
            self._owner = sampler
            self._iterator = fresh
        self.stateful = has_state(self._owner) or has_state(self._iterator)

    def _hold(self, iterator: Iterator[Index]) -> None:
        self._iterator = iterator
        if self._within:
            outer = copy.copy(self._outer)  # forms batches as usual, from the watched iterator
            outer.sampler = _watched(iterator, self._ended)
            self._batches = iter(outer)
        else:
            self._batches = iterator

    def __iter__(self) -> Iterator[Index]:
        return self

    def __next__(self) -> Index:
        return next(self._batches)

    def state(self) -> State:
        """Returns the position in the pass."""
        iterator = None if self._iterator is self._owner else copy_state(self._iterator)
        return {"sampler": copy_state(self._owner), "iterator": iterator, "ended": self._ended[0]}

    def go_on(self, state: State) -> None:
        self._load(state)
        if state["ended"]:
            self._batches = iter(())

    def begin_after(self, state: State, epoch: int | None = None) -> None:
        """Begins the pass after ``state``, which was saved at the end of a pass or between two.

        ``epoch`` is its number, if the user has set one since.
        """
        self._load(state)
        # A sampler at the end of a pass may raise StopIteration once more before the next pass.
        try:
            next(self._iterator)
        except StopIteration:
            self._set_epoch(epoch)
            self._hold(iter(self._owner))
        else:
            self._load(state, epoch)

    def _set_epoch(self, epoch: int | None) -> None:
        if epoch is not None and hasattr(self._owner, "set_epoch"):
            self._owner.set_epoch(epoch)

    def _load(self, state: State, epoch: int | None = None) -> None:
        self._ended = [False]
        load_state(self._owner, state["sampler"])
        self._set_epoch(epoch)
        iterator = iter(self._owner)
        load_state(iterator, state["iterator"])
        self._hold(iterator)


def _watched(iterator: Iterator[Index], ended: list[bool]) -> Iterator[Index]:
    yield from iterator
    # A last, smaller mini-batch exhausts the inner iterator before the pass ends.
    ended[0] = True
