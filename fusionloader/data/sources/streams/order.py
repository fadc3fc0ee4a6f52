"""The order of a stream's samples in an epoch: a function of the seed and the epoch's number alone.

Shards come in random order, a few of them at a time. Of these, runs of neighbouring samples are
mixed, so that the samples of a run can be read with one request. Then every sample is displaced by
a random number of places within the shuffle window. All of it can be computed from any place on, so
that nothing of an epoch's length is ever kept.

Random numbers are hashed from seed, epoch and place (splitmix64 of Steele, Lea and Flood, OOPSLA
2014), which no release of NumPy changes.
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
    """How far samples are mixed.

    Attributes:
        window: by how many places a sample is displaced at most.
        run: neighbouring samples that stay in one window.
        interleave: shards whose runs are mixed with each other.
    """

    window: int
    run: int
    interleave: int


class EpochOrder:
    """The samples of an epoch by place, before they are displaced.

    Attributes:
        count: samples of the epoch.
        seed: of its random numbers, together with ``epoch``.
        epoch: its number.
        shape: how far samples are mixed; ``None`` for the order of the shards.
    """

    def __init__(
        self, shard_counts: Places, seed: int, epoch: int, shape: ShuffleShape | None
    ) -> None:
        """``shard_counts`` are the samples of each shard, numbered one after the other."""
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
        """Returns by how much the sample at each place comes later."""
        assert self.shape is not None
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
        """Returns the first samples of a group's runs, and the places in it where they begin."""
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
    """Places of an epoch that nobody has delivered: some, and all from one on.

    Attributes:
        places: int64, ascending, all below ``tail``.
        tail: the first of the rest.
        count: places of the epoch.
    """

    places: Places
    tail: int
    count: int

    @classmethod
    def of_whole(cls, count: int) -> Remaining:
        """Returns all places of an epoch of ``count`` samples."""
        return cls(np.empty(0, np.int64), 0, count)

    def __len__(self) -> int:
        return len(self.places) + self.count - self.tail

    def at(self, numbers: Places) -> Places:
        """Returns the places with these numbers among the remaining ones."""
        listed = len(self.places)
        rest = numbers - listed + self.tail
        if not listed:
            return rest
        return np.where(numbers < listed, self.places[np.minimum(numbers, listed - 1)], rest)

    def without(self, numbers: Places, cut: int) -> Remaining:
        """Returns what is left if of the first ``cut`` places only those ``numbers`` are."""
        listed = len(self.places)
        still = self.places[cut:] if cut < listed else self.places[:0]
        places = np.concatenate((self.at(numbers), still))
        return Remaining(places, self.tail + max(0, cut - listed), self.count)


BLOCK = 256
"""Neighbouring places that one rank takes, so that runs are seldom cut between ranks."""


class RankOrder:
    """What one of several ranks takes of the remaining places, displaced within the window.

    Ranks take blocks by turns; what does not fill a block for each is divided evenly.

    Attributes:
        count: samples of this rank.
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
        """Returns the numbers, among the remaining places, of this rank's own ``own``-th ones."""
        block, within = np.divmod(own, BLOCK)
        whole = (block * self._ranks + self._rank) * BLOCK + within
        return np.where(
            own < self._rounds * BLOCK, whole, self._rest_begin + own - self._rounds * BLOCK
        )

    def samples(self, delivered: int) -> Iterator[Places]:
        """Yields arrays of samples, behind the first ``delivered`` ones."""
        for own in self._from(delivered):
            yield self._order.samples(self._left.at(self.numbers(own)))

    def undelivered(self, delivered: int) -> tuple[Places, int]:
        """Returns which of its first ``n`` this rank has not delivered, and ``n``."""
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
        if at:  # those before the chunk
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
        """Returns the beginning of a chunk of keys before which fewer are delivered."""
        return delivered // self._window * self._window

    def _keys(self, own: Places) -> Places:
        return own + self._order.displacements(self._left.at(self.numbers(own)))

    def _surely_before(self, key: int) -> int:
        return min(self.count, max(0, key - self._window + 1))

    def _count_before(self, key: int) -> int:
        """Returns how many have a key below ``key``."""
        low = self._surely_before(key)
        perhaps = np.arange(low, min(key, self.count))
        return low + int((self._keys(perhaps) < key).sum())

    def _chunks(self, begin: int) -> Iterator[Places]:
        """Yields this rank's numbers in the order of their keys, those of a window at a time."""
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
    """Returns what ranks leave that have delivered so many samples each of ``left``."""
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
    if most > rounds and drop_last:  # what no rank would have had
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
