"""What the offload policies observe: sums of what local and remote workers have done so far."""

from __future__ import annotations

from fusionloader import _native
from fusionloader.scheduler.offload.profile import ProfileWindow
from fusionloader.sharing.remote.board import LANES, RemoteBoard


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

    def observe(self) -> ProfileWindow:
        """Returns sums as they are now: steps since the first iterator, samples of this one."""
        local_samples, local_seconds = self._queue.work_of(0, self._local)
        remote_samples, _ = self._queue.work_of(self._first, LANES)
        board = self._board
        return ProfileWindow(
            steps=board.steps,
            seconds=board.step_ns / 1e9,
            waited=board.waited_ns / 1e9,
            local_samples=local_samples,
            local_cpu_seconds=local_seconds,
            remote_samples=remote_samples,
            remote_cpu_seconds=board.proxy_cpu_ns / 1e9,
        )

    def samples(self) -> tuple[int, int]:
        """Returns the samples of local and of remote workers."""
        local, remote = self._queue.work_of(0, self._local), self._queue.work_of(self._first, LANES)
        return local[0], remote[0]
