"""The batches of an epoch that a rank takes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from operator import index as as_integer

import torch


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that share an epoch's batches, and this rank.

    In each step every rank takes one of ``count`` consecutive batches. The assignment rotates by
    one in each step, so that no rank always has the same phase of a periodic order.

    Attributes:
        count: number of ranks.
        rank: this rank, from 0.
        drop_last: whether to leave out last batches that are too few for all ranks; otherwise the
            first batches of the epoch are repeated.
    """

    count: int
    rank: int
    drop_last: bool

    @classmethod
    def of(cls, num_replicas: int | None, rank: int | None, drop_last: bool) -> Ranks:
        """Returns the ranks that a sampler's arguments give, or those of ``torch.distributed``.

        Raises:
            ValueError: the rank is out of range, only one argument is given, or ``torchrun``
                started several ranks and ``torch.distributed`` is not initialized.
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
        """Returns the number of steps of each rank."""
        return batches // self.count if self.drop_last else -(-batches // self.count)

    def number(self, step: int, start: int, batches: int) -> int:
        """Returns the number of this rank's batch in a step after ``start``."""
        place = start + step * self.count + (self.rank + step) % self.count
        return place % batches


def _find_ranks() -> tuple[int, int]:
    """Returns the number of ranks and the rank of this process."""
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
