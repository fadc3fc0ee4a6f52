"""Workers between ranks (FusionFlow §5.3): who lends how many to whom, at one moment.

Every iteration starts fair, since a worker serves its own rank whenever that has a tiny-batch to
claim; a loan covers one mini-batch of the borrower, after which the worker is asked about anew. So
what is decided here is only where those go that have nothing to do.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankLoad:
    """How a rank stands.

    Attributes:
        unclaimed: tiny-batches that nobody has claimed, of each mini-batch in flight, the one that
            training gets next first.
        half_done: tiny-batches under way of which more than half is done. Who works on them will
            soon take another: as many unclaimed ones need no help.
        servers: workers that are at its mini-batches, its own and borrowed ones.
        idle: workers of its own that have nothing to do.
    """

    unclaimed: tuple[int, ...]
    half_done: int
    servers: int
    idle: int

    @property
    def yields(self) -> int:
        """Workers that it can do without."""
        return 0 if any(self.unclaimed) else self.idle


@dataclass(frozen=True, slots=True)
class WorkerMove:
    """``workers`` of rank ``source`` go to ``destination`` for the mini-batch at place ``ahead``.

    Ranks are places in the list that the decision was made from. For the lender this is the paper's
    ``YIELD n``, for the borrower ``BORROW n``.
    """

    source: int
    destination: int
    ahead: int
    workers: int


def share_workers(ranks: Sequence[RankLoad]) -> list[WorkerMove]:
    """Returns where idle workers are to go.

    Mini-batches that training gets next come first, over all ranks, then those behind them. Among
    equals a worker goes where most work is left per worker, so that all end at the same time; none
    goes where as many are sent already as there are tiny-batches to claim.
    """
    sources = [(-rank.yields, number) for number, rank in enumerate(ranks) if rank.yields]
    heapq.heapify(sources)  # who has the most left first; of equals, who comes first in the list
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


def _at(counts: tuple[int, ...], place: int) -> int:
    return counts[place] if place < len(counts) else 0
