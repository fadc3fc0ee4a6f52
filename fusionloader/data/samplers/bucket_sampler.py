"""Batches of samples with similar length, aspect ratio or other key, up to a size or a budget."""

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
_LENGTH_STEP = 1.1  # ratio of longest to shortest sample in a bucket
_AREA_STEP = 1.2


class BucketSampler(EpochSampler):
    """A ``batch_sampler`` that forms each batch from the samples of one bucket.

    An epoch has every index exactly once over all ranks. If the number of batches is no multiple
    of the number of ranks, the first batches of the epoch are repeated, or with ``drop_last`` the
    last ones left out. All batches of a bucket have the same number of samples, except for one.
    Therefore all epochs have the same number of batches, and ``len()`` is exact.

    The order of an epoch depends only on ``seed`` and the epoch's number. Buckets by length are
    those of Khomenko et al., "Accelerating recurrent neural network training using sequence
    bucketing and multi-GPU data parallelization" (2016).

    Memory: 4 bytes a sample, and 4 more during an epoch, for up to 4 billion samples.

    Args:
        keys: one number per sample (such as its length), or sizes: an array of n x 2 with width and
            height. Sizes are bucketed by aspect ratio, width by height.
        batch_size: largest number of samples in a batch.
        max_tokens: for lengths, the largest padded cost of a batch: its longest sample times its
            number of samples. Buckets of shorter samples have larger batches.
        max_pixels: for sizes, the largest padded cost of a batch: largest width times largest
            height times number of samples.
        boundaries: ascending keys that divide the buckets; a key equal to a boundary is in the
            bucket above it.
        buckets: number of buckets of about equal size, without ``boundaries``. ``None``: 16; or
            with ``max_tokens``, enough buckets that the longest sample of each is at most 10 %
            longer than the shortest. With ``max_pixels`` each bucket is also divided by area, in
            steps of 20 %.
        oversized: treatment of a sample above the budget: ``"raise"`` raises an error,
            ``"alone"`` makes it a batch of its own.
        shuffle: whether to shuffle the samples of each bucket and the batches in each epoch.
            Otherwise buckets and indices ascend.
        seed: an integer from 0, the same on all ranks.
        drop_last: whether to leave out the last batch of a bucket if it is smaller.
        num_replicas: number of ranks. ``None``: that of ``torch.distributed`` or, before it is
            initialized, of ``torchrun``; else 1.
        rank: rank of this process. Must be given together with ``num_replicas``.

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
        return len(self._starts)

    def form(self, epoch: int) -> BatchOrder:
        if not self.shuffle:
            return BatchOrder(self._buckets.members, self._starts, self._stops)
        generator = make_generator(self.seed, epoch)
        indices = self._buckets.members.copy()
        for there in self._buckets.slices():
            generator.shuffle(indices[there])
        order = generator.permutation(self.batches)
        return BatchOrder(indices, self._starts[order], self._stops[order])

    def describe(self) -> State:
        return {
            "samples": len(self._buckets.members),
            "buckets": len(self._buckets),
            "batch_size": self._limit.batch_size,
            "budget": self._limit.budget,
        }

    def explain(self) -> str:
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
        value_of = _ratios if keys.ndim == 2 else _themselves
        if boundaries is not None:
            chosen = checked_boundaries(boundaries)
        elif buckets is None and self._limit.unit == "tokens":
            chosen = self._in_steps(keys, _LENGTH_STEP)
        else:
            chosen = quantile_boundaries(keys, value_of, _QUANTILES if buckets is None else buckets)
        divisions = [Division(value_of, chosen)]
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
        """Puts samples above the budget into a bucket of their own, and returns their number."""
        count = 0
        for block in blocks(len(keys)):
            above = np.flatnonzero(self._limit.above(keys[block])) + block.start
            if len(above) and self._limit.oversized == "raise":
                raise self._limit.refusal(int(above[0]), keys[above[0]])
            numbers[above] = bucket
            count += len(above)
        return count

    def _cut(self) -> tuple[NDArray[np.signedinteger[Any]], NDArray[np.signedinteger[Any]]]:
        """Returns start and end of each batch in the members of all buckets."""
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
