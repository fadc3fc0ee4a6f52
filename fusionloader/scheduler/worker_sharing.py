"""Sharing workers between ranks (FusionFlow §5.3): how many idle workers move between which ranks.

A worker serves its own rank whenever the rank has a tiny-batch to claim, so every iteration starts
without borrowed workers. A move lasts for one mini-batch of the destination. After that the worker
is idle again, so that only the destinations of idle workers need to be decided.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankLoad:
    """The load of a rank.

    Attributes:
        unclaimed: number of unclaimed tiny-batches of each mini-batch in flight, in the order in
            which training gets them.
        half_done: number of active tiny-batches that are more than half done. Their workers will
            soon claim others: as many unclaimed ones need no borrowed worker.
        servers: number of workers that process its mini-batches, its own and borrowed ones.
        idle: number of its own idle workers.
    """

    unclaimed: tuple[int, ...]
    half_done: int
    servers: int
    idle: int

    @property
    def yields(self) -> int:
        """Number of workers that can move to other ranks."""
        return 0 if any(self.unclaimed) else self.idle


@dataclass(frozen=True, slots=True)
class WorkerMove:
    """``workers`` workers of rank ``source`` move to ``destination`` for mini-batch ``ahead``.

    Ranks are positions in the list of loads. Mini-batches of the destination are numbered from the
    oldest, 0. For the source this is the paper's ``YIELD n``, for the destination ``BORROW n``.
    """

    source: int
    destination: int
    ahead: int
    workers: int


def share_workers(ranks: Sequence[RankLoad]) -> list[WorkerMove]:
    """Returns the moves of idle workers.

    The mini-batches that training gets next are served first, over all ranks, then those behind
    them. Among these a worker moves where most work is left per worker, so that all end at the same
    time. No rank gets more workers than it has tiny-batches to claim.
    """
    sources = [(-rank.yields, number) for number, rank in enumerate(ranks) if rank.yields]
    heapq.heapify(sources)  # the rank with most idle workers first, then the first in the list
    moves: dict[tuple[int, int, int], int] = {}
    served = [rank.servers for rank in ranks]
    soon = [rank.half_done for rank in ranks]
    for ahead in range(max((len(rank.unclaimed) for rank in ranks), default=0)):
        if not sources:
            break
        needed = [_at(rank.unclaimed, ahead) for rank in ranks]
        for rank, unclaimed in enumerate(needed):
            needed[rank] -= min(unclaimed, soon[rank])
            soon[rank] -= min(unclaimed, soon[rank])
        sent = [0] * len(ranks)
        destinations = [
            (-need / (served[rank] + 1), rank) for rank, need in enumerate(needed) if need
        ]
        heapq.heapify(destinations)
        while destinations and sources:
            (left, source), (_, destination) = sources[0], destinations[0]
            sent[destination] += 1
            served[destination] += 1
            move = (source, destination, ahead)
            moves[move] = moves.get(move, 0) + 1
            if left < -1:
                heapq.heapreplace(sources, (left + 1, source))
            else:
                heapq.heappop(sources)
            if sent[destination] < needed[destination]:
                work = needed[destination] / (served[destination] + 1)
                heapq.heapreplace(destinations, (-work, destination))
            else:
                heapq.heappop(destinations)
    return [WorkerMove(*move, workers) for move, workers in moves.items()]


def _at(counts: tuple[int, ...], position: int) -> int:
    return counts[position] if position < len(counts) else 0
