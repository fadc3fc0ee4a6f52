"""Samplers that tell by themselves what other ranks have left of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from fusionloader.aliases import State
from fusionloader.options import LoaderOptions
from fusionloader.resume.epoch_state import EpochState
from fusionloader.resume.stateful import Stateful, has_state, is_plain_batch_sampler


class Resharding(Stateful, Protocol):
    """A sampler with a state that knows how to share what is left, as ``StreamSampler``."""

    def resharded(self, states: Sequence[State]) -> State:
        """Returns this rank's state where the ranks that had ``states`` have left off."""


def sampler_of(options: LoaderOptions) -> Resharding | None:
    """Returns a loader's sampler if it is such a one, in batches of a BatchSampler."""
    batches = options.batch_sampler
    sampler = batches.sampler if is_plain_batch_sampler(batches) else batches
    if has_state(sampler) and callable(getattr(sampler, "resharded", None)):
        return cast(Resharding, sampler)
    return None


def resharded(sampler: Resharding, found: Sequence[EpochState]) -> EpochState:
    """Returns where a loader stands that shares what the ranks of states have left.

    Raises:
        ValueError: the states are not those of all ranks in one epoch.
    """
    first = found[0]
    if any(each.epoch != first.epoch for each in found):
        raise ValueError(
            "the states are of several epochs: save those of all ranks at the same step"
        )
    if any(each.ahead for each in found):
        raise ValueError(
            "with in_order=False a rank has delivered batches behind a gap, and its sampler tells "
            "only how many: save states of a loader with in_order=True"
        )
    states = [each.sampler for each in found]
    if any(state is None for state in states):
        raise ValueError(
            "a state has no state of its sampler: it was saved by a loader with another sampler"
        )
    state = sampler.resharded([given["sampler"] for given in states if given is not None])
    # Numbers go on, so that a rank with nothing left does not begin the next pass.
    delivered = max(1, *(each.delivered for each in found))
    return EpochState(
        first.epoch,
        first.seed,
        first.generator,
        first.base_seed,
        delivered=delivered,
        resumed=True,
        num_workers=first.num_workers,
        drawn={delivered - 1: {"sampler": state, "iterator": None, "ended": False}},
    )
