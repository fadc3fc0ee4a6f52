"""The sampler of a stream: an order that few requests can read, shared by ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from fusionloader.data.samplers.ranks import find_ranks
from fusionloader.data.sources.streams.order import (
    EpochOrder,
    RankOrder,
    Remaining,
    ShuffleShape,
    remaining_after,
)

State = dict[str, Any]


class StreamSampler(Sampler[int]):
    """Yields the samples of this rank in the order of an epoch, and can save its position.

    The order depends on ``seed`` and the epoch's number. Ranks share the samples without loss or
    repetition, and their numbers of samples differ by at most one. ``merge_states`` continues an
    epoch that another number of ranks has begun.

    Attributes:
        epoch: number of the epoch of the next pass.
        num_replicas: number of ranks.
        rank: rank of this process.
    """

    # Of the class as well: a sampler that an earlier version pickled has none.
    _passes = 0
    _running: int | None = None  # epoch of the pass that is under way

    def __init__(
        self,
        shard_counts: npt.NDArray[np.int64],
        shape: ShuffleShape | None,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
    ) -> None:
        """Makes the sampler of one rank.

        Args:
            shard_counts: number of samples of each shard.
            shape: how far samples are shuffled; ``None`` for the order of the shards.
            seed: seed of the order, the same on all ranks.
            num_replicas: number of ranks; by default that of ``torch.distributed`` or ``torchrun``,
                or 1.
            rank: rank of this process.
            drop_last: whether to leave out up to ``num_replicas - 1`` samples, so that all ranks
                have the same number.

        Raises:
            ValueError: the rank is out of range, or only one argument is given.
        """
        self.epoch: int = 0
        self._counts, self._shape, self._seed = shard_counts, shape, int(seed)
        self.num_replicas: int
        self.rank: int
        self.num_replicas, self.rank = find_ranks(num_replicas, rank)
        self._drop_last = bool(drop_last)
        self._stages: list[list[int]] = []
        self._delivered = 0
        self._loaded = False  # whether the next pass continues from a loaded state

    def __getstate__(self) -> State:
        return {**self.__dict__, "_running": None}

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass. A loaded state of another epoch is dropped.

        A pass that is under way goes on.
        """
        if int(epoch) != self.epoch:
            self.epoch, self._loaded = int(epoch), False
            if self._running is None:
                self._stages, self._delivered = [], 0

    def __iter__(self) -> Iterator[int]:
        if not self._loaded:
            self._stages, self._delivered = [], 0
        self._loaded, self._running = False, self.epoch
        self._passes += 1
        number = self._passes
        try:
            for samples in self._order().samples(self._delivered):
                for sample in samples.tolist():
                    if self._passes == number:  # no later pass, and no loaded state
                        self._delivered += 1
                    yield sample
        finally:
            if self._passes == number:
                epoch, self._running = self._running, None
                if epoch != self.epoch:  # set_epoch() was called during the pass
                    self._stages, self._delivered = [], 0

    def __len__(self) -> int:
        left = self._left() if self._loaded else Remaining.of_whole(int(self._counts.sum()))
        order = RankOrder(self._epoch_order(), left, self.rank, self.num_replicas, self._drop_last)
        return order.count - (self._delivered if self._loaded else 0)

    # ---- states --------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Returns the position in the current pass, as a JSON-serialisable dictionary."""
        return {
            "order": self._identity(),
            "epoch": self.epoch if self._running is None else self._running,
            "ranks": self.num_replicas,
            "rank": self.rank,
            "drop_last": self._drop_last,
            "stages": [list(stage) for stage in self._stages],
            "delivered": self._delivered,
        }

    def load_state_dict(self, state: State) -> None:
        """Makes the next pass continue from a state.

        Raises:
            ValueError: the state is of another order or another rank.
        """
        self._check(state)
        mine, theirs = (self.rank, self.num_replicas), (state["rank"], state["ranks"])
        if mine != theirs:
            raise ValueError(
                f"the state is that of rank {theirs[0]} of {theirs[1]}, and this is rank {mine[0]} "
                f"of {mine[1]}: give the states of all ranks to merge_states(), or to the loader's "
                'load_state_dict(states, ranks="reshard")'
            )
        self.epoch, self._running = state["epoch"], None
        self._passes += 1  # a pass that is under way has no place here any more
        self._stages = [list(stage) for stage in state["stages"]]
        self._delivered = state["delivered"]
        self._loaded = True

    def merge_states(self, states: Sequence[State]) -> State:
        """Returns the state with which this rank takes its share of what is left.

        Args:
            states: states of all ranks, saved in one epoch, in any order.

        Raises:
            ValueError: the states are not of all ranks in one epoch of this order.
        """
        for state in states:
            self._check(state)
        by_rank = sorted(states, key=lambda state: int(state["rank"]))
        found = [state["rank"] for state in by_rank]
        if not by_rank or found != list(range(by_rank[0]["ranks"])):
            raise ValueError(
                f"states of the ranks {found} are given, and a state of each is needed: ranks have "
                "delivered different samples"
            )
        first = by_rank[0]
        for name in ("epoch", "stages", "drop_last"):
            if any(state[name] != first[name] for state in by_rank):
                raise ValueError(
                    f"the states differ in {name!r}: save those of all ranks in the same epoch"
                )
        delivered = [int(state["delivered"]) for state in by_rank]
        stage = [int(first["drop_last"]), *delivered]
        return {
            **first,
            "ranks": self.num_replicas,
            "rank": self.rank,
            "drop_last": self._drop_last,
            "stages": [*first["stages"], stage],
            "delivered": 0,
        }

    def _identity(self) -> State:
        shape = self._shape
        return {
            "samples": int(self._counts.sum()),
            "shards": len(self._counts),
            "seed": self._seed,
            "window": 0 if shape is None else shape.window,
            "run": 0 if shape is None else shape.run,
            "interleave": 0 if shape is None else shape.interleave,
        }

    def _check(self, state: State) -> None:
        if not isinstance(state, dict) or "order" not in state:
            raise ValueError("this is no state of a StreamSampler: give what state_dict() returned")
        for name, ours in self._identity().items():
            if state["order"].get(name) != ours:
                raise ValueError(
                    f"the state is of a stream with {name} = {state['order'].get(name)!r}, and "
                    f"this one has {ours!r}: what is left can only be computed from the same order"
                )

    def _epoch_order(self) -> EpochOrder:
        return EpochOrder(self._counts, self._seed, self.epoch, self._shape)

    def _left(self) -> Remaining:
        order = self._epoch_order()
        left = Remaining.of_whole(order.count)
        for drop_last, *delivered in self._stages:
            left = remaining_after(order, left, delivered, bool(drop_last))
        return left

    def _order(self) -> RankOrder:
        order = self._epoch_order()
        return RankOrder(order, self._left(), self.rank, self.num_replicas, self._drop_last)
