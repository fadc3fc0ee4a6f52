"""Positions of workers that iterate over a dataset themselves, and their recovery after a death."""

from __future__ import annotations

import math
from collections import Counter
from itertools import repeat

from fusionloader.data.epochs.epoch_state import EpochState, for_workers, pickled_states
from fusionloader.engine.manager.in_flight import Job, Jobs
from fusionloader.options.aliases import AnyDataset, State
from fusionloader.transforms.executors.fetchers import has_state
from fusionloader.workers.messages import StateAfter
from fusionloader.workers.worker_set import Death


class WorkerPasses:
    """The passes of a loader's workers over its dataset. Workers take turns, as with torch.

    Attributes:
        has_state: whether the dataset has a state.
        workers: number of workers.
        run: number of the current pass; a worker starts over when it changes.
        begun: workers that are known to have begun this pass.
        ended: workers whose datasets are exhausted in this pass.
    """

    def __init__(
        self,
        dataset: AnyDataset,
        states: list[State | None] | None,
        workers: int,
        in_flight: int | None,
    ) -> None:
        """Makes the passes of ``workers`` workers.

        Args:
            dataset: the dataset.
            states: states that the workers' datasets begin with.
            workers: number of workers.
            in_flight: most mini-batches in flight, if batches may come out of order. Each worker
                then has an equal share of them, so that a slow one does not block the others.
        """
        self.has_state, self.workers = has_state(dataset), workers
        self._in_flight = in_flight
        self._last: list[StateAfter] = []  # by worker
        self._go_on_from(for_workers(pickled_states(states or []), workers))
        self._epoch_state: EpochState | None = None
        self._jobs = Jobs()
        self.run = 0
        self.begun: set[int] = set()
        self.ended: set[int] = set()

    def begin(self, epoch_state: EpochState) -> None:
        epoch_state.workers = for_workers(epoch_state.workers, self.workers)
        if not any(epoch_state.workers):  # no worker resumes, so the turns start over
            epoch_state.last_worker = -1
        self._go_on_from(epoch_state.workers)
        self.run += self._epoch_state is not None
        self._epoch_state, self.begun, self.ended = epoch_state, set(), set()

    def _go_on_from(self, states: list[bytes | None]) -> None:
        # Random generators are not reset between passes.
        generators = [after.generators for after in self._last] or repeat(None)
        self._newest = [-1] * self.workers  # number of the mini-batch of ``_last``, by worker
        self._last = [
            StateAfter(-1, 0, state, of_worker, ended=False)
            for state, of_worker in zip(states, generators, strict=False)
        ]

    def follow(self, jobs: Jobs) -> None:
        """Sets the manager's mini-batches, from which positions are read."""
        self._jobs = jobs

    def next_worker(self) -> int | None:
        """Returns the worker of the next mini-batch.

        ``None`` if all datasets have ended, or, out of order, if all workers have their share.
        """
        assert self._epoch_state is not None
        jobs = [job for job in self._jobs if not job.discarded]
        self.ended.update(job.worker for job in jobs if job.after is not None and job.after.ended)
        last = jobs[-1].worker if jobs else self._epoch_state.last_worker
        turns = (turn % self.workers for turn in range(last + 1, last + 1 + self.workers))
        going_on = [worker for worker in turns if worker not in self.ended]
        if self._in_flight is not None and going_on:
            share = math.ceil(self._in_flight / len(going_on))
            tasks = Counter(job.worker for job in self._jobs.wanted)
            going_on = [worker for worker in going_on if tasks[worker] < share]
        return next(iter(going_on), None)

    def returned(self, job: Job) -> None:
        """Records that a mini-batch, its error, or the end of a worker's dataset is returned."""
        self.begun.add(job.worker)
        if job.after is not None and job.number >= self._newest[job.worker]:
            self._last[job.worker], self._newest[job.worker] = job.after, job.number
            if job.after.ended:
                self.ended.add(job.worker)

    def last(self, worker: int) -> StateAfter:
        """Returns the state that a replaced worker resumes from; its ``state`` may be ``None``."""
        for job in reversed(self._jobs.undelivered):
            # A thread may still return one that was made before the newest that was returned.
            is_newer = job.worker == worker and job.number > self._newest[worker]
            if is_newer and job.after is not None and self._jobs.is_done(job):
                return job.after
        return self._last[worker]

    def check(self, death: Death, was_held: bool) -> None:
        """Raises RuntimeError if no other process can resume the pass of a dead worker.

        Args:
            death: the worker's death.
            was_held: whether the worker was making a mini-batch.
        """
        worker = death.number
        if was_held:
            self.begun.add(worker)
        last = self.last(worker)
        if self.has_state or last.state is not None or last.ended:
            return
        if worker in self.begun or any(self._has_made(job, worker) for job in self._jobs):
            raise RuntimeError(
                f"DataLoader worker (pid(s) {death.pid}) exited unexpectedly: worker {worker} "
                f"{death.manner}. Nobody can go on with its part of the dataset, which has no "
                "state_dict() and load_state_dict()"
            )

    def _has_made(self, job: Job, worker: int) -> bool:
        return not job.discarded and job.worker == worker and self._jobs.is_done(job)
