"""How ranks share an epoch, and which of its samples no rank has delivered.

A ``DistributedSampler`` orders the samples of an epoch by its seed and the epoch's number, and
each of n ranks takes every n-th sample. When another number of ranks continues the epoch, the
samples that are left keep their order and are shared by the same rule.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress

from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

from fusionloader.data.epochs.stateful import is_plain_batch_sampler
from fusionloader.options.aliases import State
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.fetchers import has_state


@dataclass(frozen=True, slots=True)
class RankStage:
    """What a set of ranks delivered of the samples that the stages before it left.

    Attributes:
        ranks: number of ranks.
        batch_size: samples per mini-batch of a rank.
        drop_last: whether the sampler left out the last few samples to give all ranks equally many;
            otherwise it repeated the first few.
        delivered: number of mini-batches that each rank delivered without a gap; a single number if
            it is the same for all ranks.
        ahead: for each entry of ``delivered``, numbers of mini-batches delivered beyond the gap.
    """

    ranks: int
    batch_size: int
    drop_last: bool
    delivered: list[int]
    ahead: list[list[int]]

    def left(self, count: int) -> bytearray:
        """Returns one byte per sample of ``count``: 1 if no rank has delivered it, else 0."""
        left = bytearray(b"\1") * count
        each = samples_per_rank(count, self.ranks, self.drop_last)
        for rank in range(self.ranks):
            for start, stop in self._delivered_by(rank):
                places = range(rank + start * self.ranks, each * self.ranks, self.ranks)
                places = places[: stop - start]
                inside = len(range(places.start, min(places.stop, count), self.ranks))
                left[places.start : min(places.stop, count) : self.ranks] = bytes(inside)
                # The sampler pads its list with samples from the start, so places wrap around.
                for place in places[inside:]:
                    left[place % count] = 0
        return left

    def _delivered_by(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges (start, stop) of a rank's own samples that it has delivered."""
        place = rank if len(self.delivered) > 1 else 0
        yield 0, self.delivered[place] * self.batch_size
        for number in self.ahead[place]:
            yield number * self.batch_size, (number + 1) * self.batch_size


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's share of an epoch.

    Attributes:
        rank: number of this rank.
        ranks: number of ranks.
        batch_size: samples per mini-batch of a rank.
        drop_last: whether the sampler leaves out the last few samples; otherwise it repeats the
            first few.
        samples: samples per epoch, of all ranks.
        seed: the sampler's seed. With ``epoch`` and ``shuffle`` it determines the order.
        epoch: the sampler's number of the epoch.
        shuffle: whether the sampler shuffles.
        before: the sets of ranks that delivered a part of the epoch before these ranks.
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
        state = {name: getattr(self, name) for name in self.__slots__}
        return {**state, "before": [asdict(stage) for stage in self.before]}

    @classmethod
    def from_state(cls, state: State) -> Share:
        return cls(**{**state, "before": tuple(RankStage(**stage) for stage in state["before"])})


def samples_per_rank(count: int, ranks: int, drop_last: bool) -> int:
    return count // ranks if drop_last else -(-count // ranks)


def left_over(order: Sequence[int], stages: Iterable[RankStage]) -> list[int]:
    """Returns the samples that no stage delivered, in the order of the epoch."""
    rest = list(order)
    for stage in stages:
        rest = list(compress(rest, stage.left(len(rest))))
    return rest


def find_share(options: LoaderOptions) -> Share | None:
    """Returns the share that a loader's ``DistributedSampler`` gives its rank.

    Returns ``None`` without such a sampler, and for a subclass with another order or a state.
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
    """Returns the saved share ``theirs`` of an unfinished epoch, adapted to this rank.

    Raises:
        ValueError: this rank's sampler has another order of samples.
    """
    if theirs is None or not theirs.before:
        if theirs is not None and ours is not None:
            check_same_order(theirs, ours)
        return theirs
    return replace(theirs, rank=check_same_order(theirs, ours).rank)


def check_same_order(theirs: Share, ours: Share | None) -> Share:
    """Returns ``ours``.

    Raises:
        ValueError: it has another order of the samples; the message says what differs.
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
                "is left of it can only be computed from the same order of samples"
            )
    return ours


def batches_left(options: LoaderOptions, share: Share) -> Iterator[list[int]]:
    """Yields a rank's mini-batches of the samples that the stages before it left."""
    batches = options.batch_sampler
    assert is_plain_batch_sampler(batches)
    # The sampler of a single rank, without padding, yields the whole order of the epoch.
    whole = copy.copy(batches.sampler)
    assert isinstance(whole, DistributedSampler)
    whole.rank, whole.num_replicas, whole.epoch = 0, 1, share.epoch
    whole.num_samples = whole.total_size = share.samples
    rest = left_over(list(whole), share.before)
    each = samples_per_rank(len(rest), share.ranks, share.drop_last)
    places = range(share.rank, each * share.ranks, share.ranks)
    mine = [rest[place % len(rest)] for place in places]
    yield from BatchSampler(mine, share.batch_size, batches.drop_last)
