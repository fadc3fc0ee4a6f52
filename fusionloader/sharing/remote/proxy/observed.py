"""What the offload policies observe: sums of what local and remote workers have done so far."""

from __future__ import annotations

from dataclasses import dataclass

from fusionloader import _native
from fusionloader.scheduler.offload.profile import ProfileWindow
from fusionloader.sharing.remote.board import LANES, RemoteBoard


@dataclass(frozen=True, slots=True)
class Observed:
    """Sums since the loader's first iterator.

    Attributes:
        steps: of training, but the first of each epoch.
        step_seconds: that these have taken.
        waited: of them, within ``next()``.
        local_samples: made by this machine's workers of this iterator.
        local_seconds: that these have taken of workers.
        remote_samples: made by remote workers of this iterator.
        remote_cpu_seconds: of this machine, for these.
    """

    steps: int
    step_seconds: float
    waited: float
    local_samples: int
    local_seconds: float
    remote_samples: int
    remote_cpu_seconds: float

    def since(self, before: Observed, slowest: float) -> ProfileWindow:
        """Returns what happened since; ``slowest`` is the answer that took longest."""
        return ProfileWindow(
            steps=self.steps - before.steps,
            seconds=self.step_seconds - before.step_seconds,
            waited=self.waited - before.waited,
            local_samples=self.local_samples - before.local_samples,
            remote_samples=self.remote_samples - before.remote_samples,
            local_cpu_seconds=self.local_seconds - before.local_seconds,
            remote_cpu_seconds=self.remote_cpu_seconds - before.remote_cpu_seconds,
            answer_seconds=slowest,
        )


class Observer:
    """Reads them from the queue and the board."""

    def __init__(
        self,
        queue: _native.WorkerQueue,
        board: RemoteBoard,
        local_workers: int,
        first_worker: int,
    ) -> None:
        """This machine's workers have the numbers below ``local_workers``, lanes others."""
        self._queue, self._board = queue, board
        self._local, self._first = local_workers, first_worker

    def observe(self) -> Observed:
        """Returns the sums as they are now."""
        local_samples, local_seconds = self._queue.work_of(0, self._local)
        remote_samples, _ = self._queue.work_of(self._first, LANES)
        board = self._board
        return Observed(
            steps=board.steps,
            step_seconds=board.step_ns / 1e9,
            waited=board.waited_ns / 1e9,
            local_samples=local_samples,
            local_seconds=local_seconds,
            remote_samples=remote_samples,
            remote_cpu_seconds=board.proxy_cpu_ns / 1e9,
        )

    def samples(self) -> tuple[int, int]:
        """Returns the samples of local and of remote workers."""
        local, remote = self._queue.work_of(0, self._local), self._queue.work_of(self._first, LANES)
        return local[0], remote[0]
