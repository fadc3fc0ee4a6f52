"""Samplers that tell by themselves what the ranks of a job have left of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from fusionloader.data.epochs.epoch_state import EpochState
from fusionloader.data.epochs.stateful import owner_of_state
from fusionloader.options.aliases import State
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.fetchers import Stateful


class MergingSampler(Stateful, Protocol):
    """A sampler, or batch sampler, that shares what other ranks have left of an epoch.

    Those of ``fusionloader.data.samplers`` and of ``TarStream`` are such. Any other that has the
    three methods is one, too: no class is asked for.
    """

    def merge_states(self, states: Sequence[State]) -> State:
        """Returns the state from which this rank shares what the ranks of ``states`` have left.

        Args:
            states: what ``state_dict()`` returned on the ranks that there were, all in one epoch,
                in any order.

        Returns:
            A state for this sampler's own ``load_state_dict``.

        Raises:
            ValueError: it cannot be told from the states what is left.
        """


def merging_sampler(options: LoaderOptions) -> MergingSampler | None:
    """Returns the sampler of a loader if it merges states, ``None`` if it does not."""
    owner = owner_of_state(options.index_sampler)
    if owner is not None and callable(getattr(owner, "merge_states", None)):
        return cast(MergingSampler, owner)
    return None


def merged(sampler: MergingSampler, found: Sequence[EpochState]) -> EpochState:
    """Returns where a loader stands whose ``sampler`` shares what the ranks of states have left.

    Raises:
        ValueError: the states are not those of the ranks of a job in one epoch.
    """
    # A state that was saved before the epoch's first batch has nothing of it but its number.
    first = next((each for each in found if not each.finished), found[0])
    if any(each.epoch != first.epoch for each in found):
        raise ValueError(
            "the states are of several epochs: save those of all ranks at the same step"
        )
    if any(each.ahead for each in found):
        raise ValueError(
            "with in_order=False a rank has delivered batches beyond its first gap, and its "
            "sampler's state tells where a gap begins only: save states with in_order=True"
        )
    states = [each.sampler["sampler"] for each in found if each.sampler is not None]
    if len(states) < len(found):
        raise ValueError(
            "a state has none of its sampler: it was saved by a loader with another sampler"
        )
    # Numbers go on, so that a rank with nothing left does not begin the next pass.
    delivered = 0 if first.finished else max(1, *(each.delivered for each in found))
    state = {"sampler": sampler.merge_states(states), "iterator": None, "ended": False}
    return EpochState(
        first.epoch,
        first.seed,
        first.generator,
        first.base_seed,
        delivered=delivered,
        finished=first.finished,
        resumed=True,
        num_workers=first.num_workers,
        drawn={delivered - 1: state},
    )
