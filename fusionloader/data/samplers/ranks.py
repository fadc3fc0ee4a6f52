"""Which of an epoch's batches are a rank's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from operator import index as as_integer

import torch


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that share an epoch's batches, and which of them this is.

    In each step every rank takes one of ``count`` consecutive batches. Which one moves on by one
    from step to step, so that no rank always meets the same place of a periodic order.

    Attributes:
        count: number of ranks.
        rank: this one, from 0.
        drop_last: whether batches that are too few for a step of all ranks are left out; else the
            first batches of the epoch are repeated, so that all ranks have as many.
    """

    count: int
    rank: int
    drop_last: bool

    @classmethod
    def of(cls, num_replicas: int | None, rank: int | None, drop_last: bool) -> Ranks:
        """Returns the ranks that a sampler's arguments name, or those of ``torch.distributed``.

        Raises:
            ValueError: they are no ranks, only one is given, or ``torchrun`` started several ranks
                that ``torch.distributed`` does not know yet.
        """
        if (num_replicas is None) != (rank is None):
            raise ValueError(
                f"num_replicas = {num_replicas!r} and rank = {rank!r}: give both or neither"
            )
        if num_replicas is None or rank is None:
            return cls(*_find_ranks(), drop_last)
        count, this = as_integer(num_replicas), as_integer(rank)
        if count < 1 or not 0 <= this < count:
            raise ValueError(
                f"rank should be from 0 to num_replicas - 1, and rank = {this}, "
                f"num_replicas = {count}"
            )
        return cls(count, this, drop_last)

    def steps(self, batches: int) -> int:
        """Returns how many steps the ranks have with so many batches."""
        return batches // self.count if self.drop_last else -(-batches // self.count)

    def number(self, step: int, start: int, batches: int) -> int:
        """Returns which of an epoch's ``batches`` is this rank's in a step after ``start``."""
        place = start + step * self.count + (self.rank + step) % self.count
        return place % batches


def _find_ranks() -> tuple[int, int]:
    """Returns the number of ranks, and which this process is."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size()), int(distributed.get_rank())
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1:
        raise ValueError(
            f"WORLD_SIZE is {started}, and torch.distributed is not initialized: every rank would "
            "have all batches. Call torch.distributed.init_process_group() before making the "
            "sampler, or give it num_replicas and rank"
        )
    return 1, 0
