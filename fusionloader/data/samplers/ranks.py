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

    def steps(self, batches: int) -> int:
        """Returns the number of steps of each rank."""
        return batches // self.count if self.drop_last else -(-batches // self.count)

    def number(self, step: int, start: int, batches: int) -> int:
        """Returns the number of this rank's batch in a step after ``start``."""
        place = start + step * self.count + (self.rank + step) % self.count
        return place % batches


def find_ranks(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Returns the number of ranks and this rank: a sampler's arguments, or by default the job's.

    The job's are those of ``torch.distributed`` or, before it is initialized, of ``torchrun``.

    Raises:
        ValueError: the rank is out of range or unknown, or only one argument is given.
    """
    if (num_replicas is None) != (rank is None):
        raise ValueError(
            f"num_replicas = {num_replicas!r} and rank = {rank!r}: give both or neither"
        )
    distributed, environ = torch.distributed, os.environ
    if num_replicas is not None and rank is not None:
        count, this = as_integer(num_replicas), as_integer(rank)
    elif distributed.is_available() and distributed.is_initialized():
        count, this = int(distributed.get_world_size()), int(distributed.get_rank())
    elif (count := int(environ.get("WORLD_SIZE", "1"))) > 1 and "RANK" not in environ:
        raise ValueError(
            f"WORLD_SIZE is {count}, and RANK is not set: call torch.distributed."
            "init_process_group() before making the sampler, or give it num_replicas and rank"
        )
    else:
        this = int(environ.get("RANK", "0"))
    if count < 1 or not 0 <= this < count:
        raise ValueError(
            f"rank should be from 0 to num_replicas - 1, and rank = {this}, num_replicas = {count}"
        )
    return count, this
