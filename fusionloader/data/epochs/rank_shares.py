"""How ranks share an epoch, and what of it none of them has delivered.

A ``DistributedSampler`` orders the samples of an epoch by its seed and the epoch's number, and
every rank takes each n-th. Of an epoch that other ranks have begun, the ranks that there are now
share what is left, in the same order and by the same rule.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

from fusionloader.data.epochs.stateful import is_plain_batch_sampler
from fusionloader.options.aliases import State
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.fetchers import has_state


@dataclass(frozen=True, slots=True)
class RankStage:
    """What some number of ranks delivered of the samples that were left to them.

    Attributes:
        ranks: how many there were.
        batch_size: of each.
        drop_last: whether their sampler left out the last few samples, so that all have as many;
            else it repeated the first few.
        delivered: mini-batches that each rank delivered without a gap; one number if all did.
        ahead: numbers of those that each delivered beyond the gap.
    """

    ranks: int
    batch_size: int
    drop_last: bool
    delivered: list[int]
    ahead: list[list[int]]

    def to_state(self) -> State:
        """Returns a JSON-serialisable dictionary."""
        return {
            "ranks": self.ranks,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "delivered": list(self.delivered),
            "ahead": [list(numbers) for numbers in self.ahead],
        }

    def left(self, count: int) -> bytearray:
        """Returns a 1 for each of ``count`` samples that no rank has delivered, a 0 for others."""
        left = bytearray(b"\1") * count
        each = samples_per_rank(count, self.ranks, self.drop_last)
        for rank in range(self.ranks):
            for start, stop in self._delivered_by(rank):
                places = range(rank + start * self.ranks, each * self.ranks, self.ranks)
                places = places[: stop - start]
                inside = len(range(places.start, min(places.stop, count), self.ranks))
                left[places.start : min(places.stop, count) : self.ranks] = bytes(inside)
                for place in places[inside:]:  # repeated samples from the start
                    left[place % count] = 0
        return left

    def _delivered_by(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yields from which to which of the samples of ``rank`` it has delivered."""
        place = rank if len(self.delivered) > 1 else 0
        yield 0, self.delivered[place] * self.batch_size
        for number in self.ahead[place]:
            yield number * self.batch_size, (number + 1) * self.batch_size


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's share of an epoch.

    Attributes:
        rank: which it is.
        ranks: how many there are.
        batch_size: of each.
        drop_last: whether their sampler leaves out the last few samples, or repeats the first few.
        samples: in an epoch.
        seed: what the sampler orders them by, together with the next two.
        epoch: its number to the sampler.
        shuffle: whether it shuffles them.
        before: who delivered a part of the epoch before these ranks.
    """

    rank: int
    ranks: int
    batch_size: int
    drop_last: bool
    samples: int
    seed: int
    epoch: int
    shuffle: bool
    before: tuple[RankStage, ...] = ()

    def to_state(self) -> State:
        """Returns a JSON-serialisable dictionary."""
        state = {name: getattr(self, name) for name in self.__slots__}
        return {**state, "before": [stage.to_state() for stage in self.before]}

    @classmethod
    def from_state(cls, state: State) -> Share:
        """Undoes ``to_state``."""
        return cls(**{**state, "before": tuple(RankStage(**stage) for stage in state["before"])})


def samples_per_rank(count: int, ranks: int, drop_last: bool) -> int:
    """Returns how many of ``count`` samples each rank takes."""
    return count // ranks if drop_last else -(-count // ranks)


def left_over(order: Sequence[int], stages: Iterable[RankStage]) -> list[int]:
    """Returns what was delivered in none of the stages, in the order of the epoch."""
    rest = list(order)
    for stage in stages:
        rest = list(compress(rest, stage.left(len(rest))))
    return rest


def find_share(options: LoaderOptions) -> Share | None:
    """Returns the share that a loader's ``DistributedSampler`` gives it.

    ``None`` where there is none, or one that yields something else than torch's, or keeps a state.
    """
    batches = options.batch_sampler
    if not is_plain_batch_sampler(batches):
        return None
    sampler = batches.sampler
    if not isinstance(sampler, DistributedSampler) or has_state(sampler):
        return None
    if type(sampler).__iter__ is not DistributedSampler.__iter__:
        return None
    return Share(
        rank=sampler.rank,
        ranks=sampler.num_replicas,
        batch_size=batches.batch_size,
        drop_last=sampler.drop_last,
        samples=len(sampler.dataset),  # type: ignore[arg-type]
        seed=sampler.seed,
        epoch=sampler.epoch,
        shuffle=sampler.shuffle,
    )


def resume_share(theirs: Share | None, ours: Share | None) -> Share | None:
    """Returns the share that a state has of an epoch under way, as this rank goes on with it.

    Raises:
        ValueError: this rank's sampler does not order the epoch so.
    """
    if theirs is None or not theirs.before:
        if theirs is not None and ours is not None:
            check_same_order(theirs, ours)
        return theirs
    return replace(theirs, rank=check_same_order(theirs, ours).rank)


def check_same_order(theirs: Share, ours: Share | None) -> Share:
    """Returns ``ours``.

    Raises:
        ValueError: it is of another order of the samples; the message says what differs.
    """
    if ours is None:
        raise ValueError(
            "what is left of an epoch is resharded over the ranks of torch's "
            "DistributedSampler, in batches of a BatchSampler: this loader has none"
        )
    for name in ("samples", "seed", "shuffle"):
        if getattr(theirs, name) != getattr(ours, name):
            raise ValueError(
                f"the epoch was begun with a DistributedSampler of {name} = "
                f"{getattr(theirs, name)!r}, and this loader's has {getattr(ours, name)!r}: what "
                "is left of it can only be told from the same order of samples"
            )
    return ours


def batches_left(options: LoaderOptions, share: Share) -> Iterator[list[int]]:
    """Yields the mini-batches of a rank's share of what those before it have left."""
    batches = options.batch_sampler
    assert is_plain_batch_sampler(batches)
    whole = copy.copy(batches.sampler)
    assert isinstance(whole, DistributedSampler)
    whole.rank, whole.num_replicas, whole.epoch = 0, 1, share.epoch
    whole.num_samples = whole.total_size = share.samples
    rest = left_over(list(whole), share.before)
    each = samples_per_rank(len(rest), share.ranks, share.drop_last)
    places = range(share.rank, each * share.ranks, share.ranks)
    mine = [rest[place % len(rest)] for place in places]
    yield from BatchSampler(mine, share.batch_size, batches.drop_last)
