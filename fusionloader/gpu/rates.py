"""How fast the workers of either side are, as the queue counts their samples."""

from __future__ import annotations

from fusionloader import _native


class Rates:
    """Samples per second of work, of one CPU worker and of the GPU worker."""

    def __init__(self, queue: _native.ManagerQueue, gpu_worker: int) -> None:
        """``gpu_worker`` is its number; those of CPU workers are smaller."""
        self._queue = queue
        self._gpu_worker = gpu_worker
        self._before = ((0, 0.0), (0, 0.0))

    def since_last(self) -> tuple[float | None, float | None]:
        """Returns both rates since the last call, ``None`` where a side has done nothing."""
        workers = self._queue.workers(0, self._gpu_worker + 1)
        counted = [(worker.samples, worker.busy_seconds) for worker in workers]
        now = (_sum(counted[:-1]), _sum(counted[-1:]))
        rates = tuple(
            (samples - samples_before) / (busy - busy_before)
            if samples > samples_before and busy > busy_before
            else None
            for (samples, busy), (samples_before, busy_before) in zip(
                now, self._before, strict=True
            )
        )
        self._before = now
        return rates[0], rates[1]


def _sum(counted: list[tuple[int, float]]) -> tuple[int, float]:
    return sum(samples for samples, _ in counted), sum(busy for _, busy in counted)
