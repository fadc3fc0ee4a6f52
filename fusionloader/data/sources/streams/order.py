"""The order of a stream's samples in an epoch, which depends on seed and epoch number alone.

Shards are in random order and are taken in groups of a few shards. Runs of neighbouring samples of
a group are shuffled, so that the samples of a run can be read with one request. Then each sample is
displaced by a random number of places within the shuffle window. The order can be computed from any
place on, so no array of the epoch's length is stored.

Random numbers are hashed from seed, epoch and place (splitmix64 of Steele, Lea and Flood, OOPSLA
2014), so they are the same with every release of NumPy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]

_SHARDS, _RUNS, _DISPLACEMENTS = 1, 2, 3


@dataclass(frozen=True, slots=True)
class ShuffleShape:
    """How far samples are shuffled.

    Attributes:
        window: displacements are below this number of places.
        run: number of neighbouring samples that are shuffled as one.
        interleave: number of shards whose runs are shuffled with each other.
    """

    window: int
    run: int
    interleave: int


class EpochOrder:
    """The samples of an epoch by place, before they are displaced.

    Attributes:
        count: number of samples of the epoch.
        seed: seed of the random numbers, together with ``epoch``.
        epoch: number of the epoch.
        shape: how far samples are shuffled; ``None`` for the order of the shards.
    """

    def __init__(
        self, shard_counts: Places, seed: int, epoch: int, shape: ShuffleShape | None
    ) -> None:
        """``shard_counts`` are the numbers of samples of the shards, int64."""
        self.count = int(shard_counts.sum())
        self.seed, self.epoch, self.shape = seed, epoch, shape
        self._key = np.uint64((seed * 0x9E3779B97F4A7C15 + epoch) & _MASK)
        self._first = np.concatenate(([0], np.cumsum(shard_counts, dtype=np.int64)))
        if shape is None:
            return
        order = np.argsort(self.random(_SHARDS, np.arange(len(shard_counts))), kind="stable")
        pad = -len(order) % shape.interleave
        sizes = np.concatenate((shard_counts[order], np.zeros(pad, np.int64)))
        ends = np.cumsum(sizes.reshape(-1, shape.interleave).sum(axis=1))
        self._groups = [
            order[at : at + shape.interleave] for at in range(0, len(order), shape.interleave)
        ]
        self._group_begins = np.concatenate(([0], ends))
        self._runs = lru_cache(maxsize=4)(self._make_runs)

    def random(self, purpose: int, places: Places) -> npt.NDArray[np.uint64]:
        """Returns 64 random bits for each place."""
        with np.errstate(over="ignore"):
            key = _mixed(np.array([self._key + np.uint64(purpose) * _ODD]))
            return _mixed(_mixed(places.astype(np.uint64) + key[0]) ^ key[0])

    def displacements(self, places: Places) -> Places:
        """Returns by how many places each sample is displaced towards the end."""
        assert self.shape is not None
        # The high half of the product of a 32-bit random number and the window: below the window.
        high = self.random(_DISPLACEMENTS, places) >> np.uint64(32)
        return ((high * np.uint64(max(self.shape.window, 1))) >> np.uint64(32)).astype(np.int64)

    def samples(self, places: Places) -> Places:
        """Returns the samples at places of the epoch."""
        if self.shape is None:
            return places
        found = np.empty_like(places)
        groups = np.searchsorted(self._group_begins, places, side="right") - 1
        for group in np.unique(groups).tolist():
            chosen = groups == group
            starts, begins = self._runs(group)
            local = places[chosen] - self._group_begins[group]
            run = np.searchsorted(begins, local, side="right") - 1
            found[chosen] = starts[run] + local - begins[run]
        return found

    def _make_runs(self, group: int) -> tuple[Places, Places]:
        """Returns the first sample of each run of a group, and the place in the group of each."""
        assert self.shape is not None
        starts, lengths = [], []
        for shard in self._groups[group].tolist():
            begin, end = int(self._first[shard]), int(self._first[shard + 1])
            starts.append(np.arange(begin, end, self.shape.run, dtype=np.int64))
            lengths.append(np.minimum(end - starts[-1], self.shape.run))
        start, length = np.concatenate(starts), np.concatenate(lengths)
        order = np.argsort(self.random(_RUNS, start), kind="stable")
        begins = np.cumsum(length[order]) - length[order]
        return start[order], begins


@dataclass(frozen=True, slots=True, eq=False)
class Remaining:
    """The places of an epoch that no rank has delivered: a list, and all from ``tail`` on.

    Attributes:
        places: undelivered places below ``tail``, int64, ascending.
        tail: first place of the rest, which is undelivered as a whole.
        count: number of places of the epoch.
    """

    places: Places
    tail: int
    count: int

    @classmethod
    def of_whole(cls, count: int) -> Remaining:
        return cls(np.empty(0, np.int64), 0, count)

    def __len__(self) -> int:
        return len(self.places) + self.count - self.tail

    def at(self, numbers: Places) -> Places:
        """Returns the remaining places with these numbers, counted from the first one."""
        listed = len(self.places)
        rest = numbers - listed + self.tail
        if not listed:
            return rest
        return np.where(numbers < listed, self.places[np.minimum(numbers, listed - 1)], rest)

    def without(self, numbers: Places, cut: int) -> Remaining:
        """Returns what is left if only ``numbers`` of the first ``cut`` remaining places are."""
        listed = len(self.places)
        still = self.places[cut:] if cut < listed else self.places[:0]
        places = np.concatenate((self.at(numbers), still))
        return Remaining(places, self.tail + max(0, cut - listed), self.count)


BLOCK = 256
"""Number of neighbouring places that a rank takes, so that runs are seldom split over ranks."""


class RankOrder:
    """The remaining places that one of several ranks takes, displaced within the window.

    Ranks take blocks in turn. The rest that does not fill one block per rank is divided evenly.

    A rank's own numbers 0, 1, ... are delivered in the order of their keys, number plus
    displacement. A displacement is below the window W. So every number up to k - W has a key below
    k, every number from k on has not, and only the W - 1 numbers between have to be looked at.

    Attributes:
        count: number of samples of this rank.
    """

    def __init__(
        self, order: EpochOrder, left: Remaining, rank: int, ranks: int, drop_last: bool
    ) -> None:
        self._order, self._left = order, left
        self._rank, self._ranks = rank, ranks
        self._rounds, rest = divmod(len(left), BLOCK * ranks)
        each, more = divmod(rest, ranks)
        more = 0 if drop_last else more
        self._rest_begin = self._rounds * BLOCK * ranks + rank * each + min(rank, more)
        self.count = self._rounds * BLOCK + each + (rank < more)

    def numbers(self, own: Places) -> Places:
        """Returns the numbers among the remaining places of this rank's numbers ``own``."""
        block, within = np.divmod(own, BLOCK)
        whole = (block * self._ranks + self._rank) * BLOCK + within
        return np.where(
            own < self._rounds * BLOCK, whole, self._rest_begin + own - self._rounds * BLOCK
        )

    def samples(self, delivered: int) -> Iterator[Places]:
        """Yields arrays of this rank's samples after the first ``delivered`` ones."""
        for own in self._from(delivered):
            yield self._order.samples(self._left.at(self.numbers(own)))

    def undelivered(self, delivered: int) -> tuple[Places, int]:
        """Returns this rank's undelivered numbers below n, and n: from n on all are undelivered."""
        if self._window <= 1:
            return np.empty(0, np.int64), delivered
        at = self._chunk_start(delivered)
        low = self._surely_before(at)
        missing = delivered - self._count_before(at)
        taken = [np.empty(0, np.int64)]
        for own in self._chunks(at):
            if missing <= 0:
                break
            taken.append(own[:missing])
            missing -= len(taken[-1])
        gone = np.concatenate(taken)
        if at:  # below low all are delivered; from low to at, those with a key before the chunk
            before = np.arange(low, min(at, self.count))
            gone = np.concatenate((gone, before[self._keys(before) < at]))
        high = int(gone.max()) + 1 if len(gone) else low
        is_left = np.ones(high - low, bool)
        is_left[gone - low] = False
        return low + np.flatnonzero(is_left), high

    @property
    def _window(self) -> int:
        return 0 if self._order.shape is None else self._order.shape.window

    def _from(self, delivered: int) -> Iterator[Places]:
        if self._window <= 1:
            for low in range(delivered, self.count, BLOCK):
                yield np.arange(low, min(low + BLOCK, self.count))
            return
        at = self._chunk_start(delivered)
        skipped = delivered - self._count_before(at)
        for own in self._chunks(at):
            yield own[skipped:]
            skipped = max(0, skipped - len(own))

    def _chunk_start(self, delivered: int) -> int:
        """Returns a multiple of the window such that at most ``delivered`` keys are below it."""
        return delivered // self._window * self._window

    def _keys(self, own: Places) -> Places:
        return own + self._order.displacements(self._left.at(self.numbers(own)))

    def _surely_before(self, key: int) -> int:
        """Returns the count of numbers whose key is below ``key``, whatever their displacement."""
        return min(self.count, max(0, key - self._window + 1))

    def _count_before(self, key: int) -> int:
        """Returns the count of numbers whose key is below ``key``."""
        low = self._surely_before(key)
        perhaps = np.arange(low, min(key, self.count))
        return low + int((self._keys(perhaps) < key).sum())

    def _chunks(self, begin: int) -> Iterator[Places]:
        """Yields this rank's numbers in the order of their keys, one window of keys at a time."""
        for low in itertools.count(begin, self._window):
            if low >= self.count + self._window:
                return
            own = np.arange(self._surely_before(low), min(low + self._window, self.count))
            keys = self._keys(own)
            chosen = (keys >= low) & (keys < low + self._window)
            yield own[chosen][np.argsort(keys[chosen], kind="stable")]


def remaining_after(
    order: EpochOrder, left: Remaining, delivered: list[int], drop_last: bool
) -> Remaining:
    """Returns what is left of ``left`` after ranks have delivered so many samples each.

    Only the first ``cut`` places of ``left`` are listed: the rounds of blocks that some rank has
    begun, or all places if a rank has begun its share of the rest.
    """
    ranks = len(delivered)
    orders = [RankOrder(order, left, rank, ranks, drop_last) for rank in range(ranks)]
    found = [one.undelivered(count) for one, count in zip(orders, delivered, strict=True)]
    rounds = len(left) // (BLOCK * ranks)
    most = max(-(-high // BLOCK) for _, high in found)
    cut = most * BLOCK * ranks if most <= rounds else len(left)
    numbers = []
    for one, (missing, high) in zip(orders, found, strict=True):
        end = min(most * BLOCK, one.count) if most <= rounds else one.count
        numbers.append(one.numbers(np.concatenate((missing, np.arange(high, end)))))
    if most > rounds and drop_last:  # the last samples, which no rank takes
        numbers.append(
            np.arange(len(left) - (len(left) - rounds * BLOCK * ranks) % ranks, len(left))
        )
    return left.without(np.sort(np.concatenate(numbers)), cut)


_MASK = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns splitmix64 of each value."""
    with np.errstate(over="ignore"):
        values = values + _ODD
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
