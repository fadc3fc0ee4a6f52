"""``load_state_dict``: the state of this rank, or states of another number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, cast

from fusionloader.data.epochs.epoch_state import EpochState
from fusionloader.data.epochs.identity import describe_loader
from fusionloader.data.epochs.rank_shares import RankStage, Share, check_same_order, find_share
from fusionloader.data.epochs.stateful import find_stateful_sampler
from fusionloader.options.aliases import State
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.fetchers import Stateful

_RANKS = ("same", "reshard")
# What may differ between the loader that saved the state and the one that reshards it.
_FREE = ("world_size", "batch_size", "drop_last")


def load_state(options: LoaderOptions, state: State | Sequence[State], ranks: str) -> EpochState:
    """Returns the epoch that ``load_state_dict(state, ranks)`` restores.

    Raises:
        ValueError: as ``load_state_dict`` does.
    """
    if ranks not in _RANKS:
        raise ValueError(f"ranks should be one of {_RANKS}, not {ranks!r}")
    identity = describe_loader(options)
    if ranks == "reshard":
        return load_resharded(options, state, identity)
    if not isinstance(state, dict):
        raise ValueError(
            f"a state is a dict, not a {type(state).__name__}; those of several ranks are "
            'loaded with ranks="reshard"'
        )
    return EpochState.from_state(state, identity)


def load_resharded(
    options: LoaderOptions, states: State | Sequence[State], identity: State
) -> EpochState:
    """Returns the epoch that ``load_state_dict(states, ranks="reshard")`` restores.

    Args:
        options: options of the loader that loads the states.
        states: states of all ranks, in any order; or of one if all delivered the same number of
            batches.
        identity: identity of the loader, see ``describe_loader``.

    Raises:
        ValueError: the states do not determine what is left, or they are of another kind of
            loader.
    """
    if not isinstance(states, Iterable) or isinstance(states, str):
        raise ValueError(
            "states are a dict, or a list with those of all ranks, not a "
            f"{type(states).__name__}; what was gathered on one rank has to be sent to the others"
        )
    given = [states] if isinstance(states, dict) else list(states)
    if not given:
        raise ValueError("states of all ranks are to be loaded, and the list is empty")
    ours = find_share(options)
    sampler = find_merging_sampler(options)
    alone = sampler is None or (len(given) == 1 and identity["world_size"] == 1)
    if alone and (same := _own_state(given, ours, identity)) is not None:
        return EpochState.from_state(same, identity)
    fixed = {name: value for name, value in identity.items() if name not in _FREE}
    found = [EpochState.from_state(state, fixed) for state in given]
    if any(any(epoch_state.worker_states()) for epoch_state in found):
        raise ValueError(
            "the dataset keeps a state in every worker of every rank, which cannot be resharded: "
            "load each rank's own state, with the same number of ranks"
        )
    if sampler is not None:
        return merge_epochs(sampler, found)
    if all(epoch_state.finished for epoch_state in found):
        return found[0]
    by_rank = sorted(zip(_shares(found), found, strict=True), key=lambda pair: pair[0].rank)
    first, epoch_state = by_rank[0]
    ours = check_same_order(first, ours)
    return EpochState(
        epoch_state.epoch,
        epoch_state.seed,
        epoch_state.generator,
        epoch_state.base_seed,
        resumed=True,
        num_workers=epoch_state.num_workers,
        share=replace(ours, epoch=first.epoch, before=(*first.before, _stage(by_rank))),
    )


def _own_state(given: list[State], ours: Share | None, identity: State) -> State | None:
    """Returns the state that this rank can resume without resharding; ``None`` if there is none."""
    if any(not isinstance(s, dict) or s.get("loader") != identity for s in given):
        return None
    if len(given) == 1 and (ours is None or not given[0].get("ahead")):
        return given[0]  # every rank is at this position
    if ours is None or len(given) not in (1, ours.ranks):
        return None
    own = [s for s in given if (s.get("ranks") or {}).get("rank") == ours.rank]
    return own[0] if len(own) == 1 else None


def _shares(found: list[EpochState]) -> list[Share]:
    shares = [epoch_state.share for epoch_state in found if epoch_state.share is not None]
    if len(shares) < len(found):
        raise ValueError(
            "what is left of an epoch is computed from the order of torch's DistributedSampler, in "
            "batches of a BatchSampler: the state was saved by a loader that had none"
        )
    numbers = {epoch_state.epoch for epoch_state in found}
    places = {replace(share, rank=0, before=()) for share in shares}
    finished = any(epoch_state.finished for epoch_state in found)
    agree = all(share.before == shares[0].before for share in shares)
    if len(numbers) > 1 or len(places) > 1 or finished or not agree:
        raise ValueError(
            "the states are not of one epoch of one job: save those of all ranks at the same step"
        )
    return shares


def _stage(by_rank: list[tuple[Share, EpochState]]) -> RankStage:
    first = by_rank[0][0]
    there = [share.rank for share, _ in by_rank]
    if len(by_rank) > 1 and there != list(range(first.ranks)):
        raise ValueError(
            f"states of the ranks {there} are given, and there were {first.ranks}: give one for "
            "each of them, or a single one if all had delivered as many batches"
        )
    delivered = [epoch_state.delivered for _, epoch_state in by_rank]
    ahead = [sorted(epoch_state.ahead) for _, epoch_state in by_rank]
    if len(by_rank) == 1 and ahead[0] and first.ranks > 1:
        raise ValueError(
            "with in_order=False each rank has delivered other batches: give a list with the "
            "states of all of them"
        )
    if len(set(delivered)) == 1 and not any(ahead):
        delivered, ahead = delivered[:1], [[]]
    return RankStage(first.ranks, first.batch_size, first.drop_last, delivered, ahead)


# ---- samplers that merge states -----------------------------------------------------------------


class MergingSampler(Stateful, Protocol):
    """A sampler, or batch sampler, that can share what other ranks have left of an epoch.

    The samplers of ``fusionloader.data.samplers`` and of ``TarStream`` do so, and any other one
    with the three methods.
    """

    def merge_states(self, states: Sequence[State]) -> State:
        """Returns the state with which this rank takes its share of what is left.

        Args:
            states: what ``state_dict()`` returned on all ranks in one epoch, in any order.

        Returns:
            A state for this sampler's own ``load_state_dict``.

        Raises:
            ValueError: the states do not determine what is left.
        """


def find_merging_sampler(options: LoaderOptions) -> MergingSampler | None:
    owner = find_stateful_sampler(options.index_sampler)
    if owner is not None and callable(getattr(owner, "merge_states", None)):
        return cast(MergingSampler, owner)
    return None


def merge_epochs(sampler: MergingSampler, found: Sequence[EpochState]) -> EpochState:
    """Returns the epoch in which ``sampler`` takes its share of what is left.

    Raises:
        ValueError: the states are not of all ranks of a job in one epoch.
    """
    # A state that was saved before the epoch's first batch only has the number of the epoch.
    first = next((each for each in found if not each.finished), found[0])
    if any(each.epoch != first.epoch for each in found):
        raise ValueError(
            "the states are of several epochs: save those of all ranks at the same step"
        )
    if any(each.ahead for each in found):
        raise ValueError(
            "a rank has delivered batches out of order, and its sampler's state has the position "
            "of the first gap only: save states of loaders with in_order=True"
        )
    states = [each.sampler["sampler"] for each in found if each.sampler is not None]
    if len(states) < len(found):
        raise ValueError(
            "a state has no sampler state: it was saved by a loader with another sampler"
        )
    # At least 1, so that a rank with nothing left does not begin the next pass.
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
