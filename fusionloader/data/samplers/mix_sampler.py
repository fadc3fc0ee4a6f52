"""Batches from several sources, mixed by weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index as as_integer
from typing import Literal

import numpy as np

from fusionloader.data.samplers.batch_order import (
    BatchOrder,
    Indices,
    make_generator,
    smallest_signed,
)
from fusionloader.data.samplers.epoch_sampler import EpochSampler
from fusionloader.data.samplers.mix_sources import MixSources, Source
from fusionloader.data.samplers.proportions import (
    Counts,
    even_choices,
    random_choices,
    turns_for_total,
    turns_until_all,
    turns_until_first,
)
from fusionloader.data.samplers.source_order import (
    in_order,
    put_together,
    with_replacement,
    without_replacement,
)
from fusionloader.options.aliases import State

Per = Literal["sample", "batch"]
Stop = Literal["first_exhausted", "all_exhausted"]
SourceOrder = Literal["even", "random"]

_CHOICES = 0  # key of the generator of choices; source i has key i + 1


class MixSampler(EpochSampler):
    """A ``batch_sampler`` that mixes several sources by weights.

    It yields indices into torch's ``ConcatDataset`` of the sources. Each epoch has the same number
    of samples of each source: its share of the epoch, to within a few samples. A source that is
    exhausted within an epoch is shuffled again. The order of an epoch depends only on ``seed`` and
    the epoch's number.

    With ``order="even"`` the proportions hold at every point of an epoch: after t samples (batches,
    with ``per="batch"``), one of S sources with share w has had t * w turns, to within
    (1 + S * w) / 2. This is Webster's method of apportionment, turn by turn. With
    ``order="random"`` the proportions hold over the epoch, and those of a batch are random.

    Memory: 10 bytes a sample of an epoch while it is formed, 4 afterwards, for up to 4 billion
    samples in all sources.

    Args:
        sources: datasets or their lengths, as a mapping by name or as a sequence.
        weights: one number above 0 per source, by the same names or in the same order; any sum.
        batch_size: samples in a batch.
        per: ``"sample"`` mixes sources within batches. With ``"batch"`` each batch is whole and of
            one source.
        stop: the end of an epoch: before a sample of a source would be repeated
            (``"first_exhausted"``), when each source has been used up once (``"all_exhausted"``),
            or after a number of samples, over all ranks. With ``per="batch"`` sources are counted
            in batches, rounded down for ``"first_exhausted"`` and up for the others.
        order: order of the sources: ``"even"`` or ``"random"``.
        replacement: whether the samples of a source are drawn with replacement; one value for all
            sources, or one per source in the form of ``weights``.
        shuffle: whether to shuffle the samples of each source in each epoch. Otherwise they ascend.
        seed: an integer from 0, the same on all ranks.
        drop_last: whether to leave out the last batch of an epoch if it is smaller.
        num_replicas: number of ranks. ``None``: that of ``torch.distributed`` or, before it is
            initialized, of ``torchrun``; else 1.
        rank: rank of this process. Must be given together with ``num_replicas``.

    Raises:
        TypeError: a source is a sampler, or has no length.
        ValueError: an argument is not as described.
    """

    def __init__(
        self,
        sources: Mapping[str, Source] | Sequence[Source],
        weights: Mapping[str, float] | Sequence[float],
        *,
        batch_size: int,
        per: Per = "sample",
        stop: Stop | int = "first_exhausted",
        order: SourceOrder = "even",
        replacement: bool | Mapping[str, bool] | Sequence[bool] = False,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(
            seed=seed, shuffle=shuffle, drop_last=drop_last, num_replicas=num_replicas, rank=rank
        )
        self.batch_size: int = as_integer(batch_size)
        if self.batch_size < 1:
            raise ValueError(f"batch_size should be a whole number from 1 on, not {batch_size!r}")
        if per not in ("sample", "batch"):
            raise ValueError(f"per should be 'sample' or 'batch', not {per!r}")
        if order not in ("even", "random"):
            raise ValueError(f"order should be 'even' or 'random', not {order!r}")
        self._sources = MixSources.of(sources, weights, replacement)
        self._turn = self.batch_size if per == "batch" else 1  # samples in a turn of one source
        self._per, self._order_of_sources = per, order
        self._stop = stop if isinstance(stop, str) else as_integer(stop)
        self._turns = self._count_turns()

    @property
    def samples_per_epoch(self) -> dict[str, int]:
        """Number of samples of each source in an epoch, over all ranks, by its name or place."""
        counts = (self._turns * self._turn).tolist()
        return dict(zip(self._sources.names, counts, strict=True))

    @property
    def batches(self) -> int:
        whole, rest = divmod(int(self._turns.sum()) * self._turn, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def form(self, epoch: int) -> BatchOrder:
        samples = [self._draw(epoch, place) for place in range(len(self._turns))]
        if self._order_of_sources == "even":
            choices = even_choices(self._sources.shares, self._turns)
        else:
            choices = random_choices(self._turns, make_generator(self.seed, epoch, _CHOICES))
        indices = put_together(choices, samples, self._sources.offsets, self._turn)
        places = smallest_signed(len(indices))
        starts = np.arange(self.batches, dtype=places) * places.type(self.batch_size)
        return BatchOrder(indices, starts, np.minimum(starts + self.batch_size, len(indices)))

    def describe(self) -> State:
        return {
            "sources": list(self._sources.names),
            "lengths": list(self._sources.lengths),
            "weights": list(self._sources.weights),
            "replacement": list(self._sources.replacement),
            "batch_size": self.batch_size,
            "per": self._per,
            "stop": self._stop,
            "order": self._order_of_sources,
        }

    def explain(self) -> str:
        total = int(self._turns.sum())
        parts = [
            f"{name} {turns / total:.1%} ({turns * self._turn / length:.2f} times)"
            for name, turns, length in zip(
                self._sources.names, self._turns.tolist(), self._sources.lengths, strict=True
            )
        ]
        return f"MixSampler: {self.batches} batches an epoch: {', '.join(parts)}"

    def _count_turns(self) -> Counts:
        """Returns the number of turns of each source in an epoch.

        Raises:
            ValueError: ``stop`` is invalid, or a source is shorter than a batch of its own.
        """
        shares, lengths = self._sources.shares, self._sources.counts
        if self._stop == "all_exhausted":
            return turns_until_all(shares, -(-lengths // self._turn))
        if self._stop == "first_exhausted":
            for name, length in zip(self._sources.names, self._sources.lengths, strict=True):
                if length < self._turn:
                    raise ValueError(
                        f"source {name} has {length} samples, less than a batch of {self._turn}: "
                        'give another stop than "first_exhausted", smaller batches, or '
                        'per="sample"'
                    )
            return turns_until_first(shares, lengths // self._turn)
        if isinstance(self._stop, str) or self._stop < 1:
            raise ValueError(
                "stop should be 'first_exhausted', 'all_exhausted' or a number of samples from 1 "
                f"on, not {self._stop!r}"
            )
        return turns_for_total(shares, -(-self._stop // self._turn))

    def _draw(self, epoch: int, place: int) -> Indices:
        """Returns the samples of source number ``place`` in an epoch, as indices into it."""
        length, count = self._sources.lengths[place], int(self._turns[place]) * self._turn
        generator = make_generator(self.seed, epoch, place + 1)
        if self._sources.replacement[place]:
            return with_replacement(length, count, generator)
        if not self.shuffle:
            return in_order(length, count)
        return without_replacement(length, count, generator)
