"""Ranks in lock step, simulated: workers not shared, shared while idle, or one pool."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from enum import Enum

from fusionloader.cli.simulator.engine import Engine
from fusionloader.cli.simulator.times import ServiceTimes, draw_tiny_batches
from fusionloader.scheduler.worker_sharing import RankLoad, share_workers

_TAIL = 1.5  # exponent of the Pareto distribution that sample times are multiplied by
_LONGEST = 10.0


class WorkerSharing(Enum):
    """Which workers serve which ranks.

    ``IDLE``: idle workers move to other ranks, as the global manager decides.
    """

    NONE = "none"
    IDLE = "sharing"
    POOL = "one pool"


@dataclass(frozen=True, slots=True)
class RanksSetup:
    """Ranks that wait for each other after every step, which itself takes no time.

    ``reaction`` are the seconds from an idle worker to the global manager's decision. A step of
    one rank is ``slower`` times as costly as one of the others: always of the first rank, or with
    ``random_rank`` of one drawn for each step.
    """

    times: ServiceTimes
    ranks: int
    workers: int
    sharing: WorkerSharing
    steps: int = 30
    batch_size: int = 64
    tiny_batch_size: int = 4
    prefetch_factor: int = 2
    reaction: float = 3e-4
    slower: float = 3.0
    random_rank: bool = False
    seed: int = 0

    @property
    def in_flight(self) -> int:
        """Mini-batches of a rank, as the loader has it by default."""
        return self.prefetch_factor * self.workers


@dataclass(frozen=True, slots=True)
class RanksOutcome:
    """``seconds`` until the last step, the decisions taken, and what they cost this machine."""

    seconds: float
    decisions: int
    decision_seconds: float


@dataclass(slots=True)
class _MiniBatch:
    waiting: list[float]  # seconds of each unclaimed tiny-batch, the largest last
    left: int  # not completed
    half_done: int = 0


@dataclass(slots=True)
class _Worker:
    rank: int
    assigned: tuple[int, int] | None = None  # to which rank, and up to which step
    serving: int | None = None  # the rank whose tiny-batch it processes


class RanksSimulation:
    """Runs one setup."""

    def __init__(self, setup: RanksSetup) -> None:
        self._setup = setup
        self._engine = Engine()
        self._random = random.Random(setup.seed)
        self._queues: list[list[_MiniBatch]] = [[] for _ in range(setup.ranks)]
        self._workers = [_Worker(rank) for rank in range(setup.ranks) for _ in range(setup.workers)]
        self._step = 0
        self._deciding = False
        self._decisions, self._decision_seconds = 0, 0.0

    def run(self) -> RanksOutcome:
        """Takes all steps."""
        self._publish()
        self._wake()
        self._engine.run(done=lambda: self._step == self._setup.steps)
        return RanksOutcome(self._engine.now, self._decisions, self._decision_seconds)

    def _publish(self) -> None:
        setup = self._setup
        while len(self._queues[0]) < min(self._step + setup.in_flight, setup.steps):
            slow = self._random.randrange(setup.ranks) if setup.random_rank else 0
            for rank, queue in enumerate(self._queues):
                factor = setup.slower if rank == slow else 1.0
                tiny = [
                    sum(
                        each.cpu_seconds * factor * min(self._random.paretovariate(_TAIL), _LONGEST)
                        for each in samples
                    )
                    for samples in draw_tiny_batches(
                        setup.times, self._random, setup.batch_size, setup.tiny_batch_size
                    )
                ]
                queue.append(_MiniBatch(tiny, len(tiny)))

    def _wake(self) -> None:
        for worker in self._workers:
            if worker.serving is None:
                self._work(worker)

    # ---- workers -------------------------------------------------------------------------------

    def _work(self, worker: _Worker) -> None:
        found = self._find(worker)
        if found is None:
            worker.assigned = None
            self._ask()
            return
        rank, step = found
        batch = self._queues[rank][step]
        seconds = batch.waiting.pop()
        worker.serving = rank

        def half() -> None:
            batch.half_done += 1
            self._engine.after(seconds / 2, end)

        def end() -> None:
            batch.half_done -= 1
            batch.left -= 1
            worker.serving = None
            if batch.left == 0 and step == self._step:
                self._advance()
            if worker.serving is None:  # it may have been woken by that
                self._work(worker)

        self._engine.after(seconds / 2, half)

    def _find(self, worker: _Worker) -> tuple[int, int] | None:
        if self._setup.sharing is WorkerSharing.POOL:
            most = max(len(queue) for queue in self._queues)
            for step in range(self._step, most):
                rank = max(range(self._setup.ranks), key=lambda r: len(self._at(r, step)))
                if self._at(rank, step):
                    return rank, step
            return None
        own = self._oldest(worker.rank, len(self._queues[worker.rank]) - 1)
        if own is not None:
            return worker.rank, own
        if worker.assigned is not None:
            rank, last = worker.assigned
            other = self._oldest(rank, last)
            if other is not None:
                return rank, other
        return None

    def _at(self, rank: int, step: int) -> list[float]:
        return self._queues[rank][step].waiting

    def _oldest(self, rank: int, last: int) -> int | None:
        return next((step for step in range(self._step, last + 1) if self._at(rank, step)), None)

    def _advance(self) -> None:
        before = self._step
        while self._step < self._setup.steps and all(
            queue[self._step].left == 0 for queue in self._queues
        ):
            self._step += 1
            self._publish()
        if self._step > before:
            self._wake()

    # ---- the global manager --------------------------------------------------------------------

    def _ask(self) -> None:
        if self._setup.sharing is WorkerSharing.IDLE and not self._deciding:
            self._deciding = True
            self._engine.after(self._setup.reaction, self._decide)

    def _decide(self) -> None:
        self._deciding = False
        idle = [[w for w in self._workers if w.rank == rank and w.serving is None]
                for rank in range(self._setup.ranks)]  # fmt: skip
        ranks = [
            RankLoad(
                tuple(len(batch.waiting) for batch in queue[self._step :]),
                sum(batch.half_done for batch in queue[self._step :]),
                sum(worker.serving == rank for worker in self._workers),
                len(idle[rank]),
            )
            for rank, queue in enumerate(self._queues)
        ]
        begun = time.process_time()
        moves = share_workers(ranks)
        self._decision_seconds += time.process_time() - begun
        self._decisions += 1
        for move in moves:
            for _ in range(move.workers):
                worker = idle[move.source].pop()
                worker.assigned = (move.destination, self._step + move.ahead)
                self._work(worker)
