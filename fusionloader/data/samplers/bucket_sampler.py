"""Batches of similar samples: by length, aspect ratio or another key, up to a size or a budget."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_integer
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusionloader.data.samplers.batch_limit import BatchLimit, Keys, Oversized, costs
from fusionloader.data.samplers.batch_order import BatchOrder, make_generator, smallest_signed
from fusionloader.data.samplers.buckets import (
    Boundaries,
    Division,
    Numbers,
    blocks,
    bucket_numbers,
    checked_boundaries,
    geometric_boundaries,
    grouped,
    quantile_boundaries,
)
from fusionloader.data.samplers.epoch_sampler import EpochSampler
from fusionloader.options.aliases import State

_QUANTILES = 16
_LENGTH_STEP = 1.1  # from the shortest to the longest of a bucket
_AREA_STEP = 1.2


class BucketSampler(EpochSampler):
    """A ``batch_sampler`` whose batches have samples of one bucket each.

    An epoch has every index exactly once over all ranks. Only where the number of batches is no
    multiple of that of ranks, the epoch's first batches are repeated, or with ``drop_last`` some
    left out. All batches of a bucket have as many samples, but for one. So all epochs have as many
    batches, and ``len()`` is exact.

    The order of an epoch is a function of ``seed`` and the epoch's number alone. Buckets by length
    are those of Khomenko et al., "Accelerating recurrent neural network training using sequence
    bucketing and multi-GPU data parallelization" (2016).

    Memory: 4 bytes a sample, and 4 more for an epoch, for up to 4 billion samples.

    Args:
        keys: one number per sample (its length, say), or sizes: an array of n x 2 with width and
            height, which are bucketed by aspect ratio, width by height.
        batch_size: samples in a batch, at most.
        max_tokens: padded cost of a batch of lengths, at most: its longest times its samples.
            Buckets of shorter samples have larger batches.
        max_pixels: the same for sizes: largest width times largest height times samples.
        boundaries: ascending; a bucket has the keys from one up to below the next.
        buckets: without boundaries, how many of about as many samples each. ``None``: 16, or with
            ``max_tokens`` as many as it takes for the longest of each to be at most a tenth longer
            than the shortest. With ``max_pixels`` each is divided by area, too, in steps of a
            fifth.
        oversized: of a sample above the budget: ``"raise"`` names it, ``"alone"`` makes it a batch
            by itself.
        shuffle: draws which samples of a bucket make a batch, and the order of batches, anew in
            each epoch. Otherwise buckets and indices ascend.
        seed: a whole number from 0, the same on all ranks.
        drop_last: leaves out the last batch of a bucket where it is smaller.
        num_replicas: number of ranks; ``None``: that of ``torch.distributed``, 1 without it.
        rank: of this process; given together with ``num_replicas``.

    Raises:
        ValueError: an argument is not as described, or a sample is above the budget.
    """

    def __init__(
        self,
        keys: ArrayLike,
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        max_pixels: int | None = None,
        boundaries: Sequence[float] | None = None,
        buckets: int | None = None,
        oversized: Oversized = "raise",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(
            seed=seed, shuffle=shuffle, drop_last=drop_last, num_replicas=num_replicas, rank=rank
        )
        if boundaries is not None and buckets is not None:
            raise ValueError("give boundaries or buckets, not both")
        if buckets is not None and as_integer(buckets) < 1:
            raise ValueError(f"buckets should be a whole number from 1 on, not {buckets!r}")
        found = np.asarray(keys)
        self._limit = BatchLimit.of(batch_size, max_tokens, max_pixels, oversized)
        self._limit.check(found)
        numbers, count = bucket_numbers(found, self._divisions(found, boundaries, buckets))
        self._oversized = self._set_apart(found, numbers, count)
        self._buckets = grouped(numbers, count + 1)
        self._sizes = [
            self._limit.samples(found[self._buckets.members[there]])
            for there in self._buckets.slices()
        ]
        self._starts, self._stops = self._cut()

    @property
    def batches(self) -> int:
        """How many batches each epoch has, over all ranks and without repeated ones."""
        return len(self._starts)

    def form(self, epoch: int) -> BatchOrder:
        """Returns all batches of an epoch, a function of the seed and ``epoch`` alone."""
        if not self.shuffle:
            return BatchOrder(self._buckets.members, self._starts, self._stops)
        generator = make_generator(self.seed, epoch)
        indices = self._buckets.members.copy()
        for there in self._buckets.slices():
            generator.shuffle(indices[there])
        order = generator.permutation(self.batches)
        return BatchOrder(indices, self._starts[order], self._stops[order])

    def describe(self) -> State:
        """Returns what a sampler must have in common with one whose state it takes, by name."""
        return {
            "samples": len(self._buckets.members),
            "buckets": len(self._buckets),
            "batch_size": self._limit.batch_size,
            "budget": self._limit.budget,
        }

    def explain(self) -> str:
        """Returns a line on how batches are made."""
        limits = [f"of {min(self._sizes)} to {max(self._sizes)} samples"]
        if self._limit.budget is not None:
            limits.append(f"at most {self._limit.budget} {self._limit.unit} with padding")
        if self._oversized:
            limits.append(f"samples above that alone: {self._oversized}")
        return (
            f"BucketSampler: {self.batches} batches an epoch from {len(self._buckets)} buckets, "
            f"{', '.join(limits)}"
        )

    def _divisions(
        self, keys: Keys, boundaries: Sequence[float] | None, buckets: int | None
    ) -> list[Division]:
        of = _ratios if keys.ndim == 2 else _themselves
        if boundaries is not None:
            chosen = checked_boundaries(boundaries)
        elif buckets is None and self._limit.unit == "tokens":
            chosen = self._in_steps(keys, _LENGTH_STEP)
        else:
            chosen = quantile_boundaries(keys, of, _QUANTILES if buckets is None else buckets)
        divisions = [Division(of, chosen)]
        if self._limit.unit == "pixels":
            divisions.append(Division(costs, self._in_steps(keys, _AREA_STEP)))
        return divisions

    def _in_steps(self, keys: Keys, factor: float) -> Boundaries:
        assert self._limit.budget is not None
        smallest, largest = self._limit.budget, 1
        for block in blocks(len(keys)):
            found = costs(keys[block])
            smallest, largest = min(smallest, int(found.min())), max(largest, int(found.max()))
        return geometric_boundaries(smallest, min(largest, self._limit.budget), factor)

    def _set_apart(self, keys: Keys, numbers: Numbers, bucket: int) -> int:
        """Puts samples above the budget into a bucket of their own, and returns how many."""
        count = 0
        for block in blocks(len(keys)):
            above = np.flatnonzero(self._limit.above(keys[block])) + block.start
            if len(above) and self._limit.oversized == "raise":
                raise self._limit.refusal(int(above[0]), keys[above[0]])
            numbers[above] = bucket
            count += len(above)
        return count

    def _cut(self) -> tuple[NDArray[np.signedinteger[Any]], NDArray[np.signedinteger[Any]]]:
        """Returns where each batch begins and ends among the members of all buckets."""
        starts, stops = [], []
        for there, size in zip(self._buckets.slices(), self._sizes, strict=True):
            first = np.arange(there.start, there.stop, size)
            if self.drop_last and (there.stop - there.start) % size:
                first = first[:-1]
            starts.append(first)
            stops.append(np.minimum(first + size, there.stop))
        places = smallest_signed(len(self._buckets.members))
        return np.concatenate(starts).astype(places), np.concatenate(stops).astype(places)


def _themselves(keys: Keys) -> Keys:
    return keys


def _ratios(sizes: Keys) -> Keys:
    return np.asarray(sizes[:, 0] / sizes[:, 1])
