"""How fast workers are, from what they count in their records."""

from __future__ import annotations

from fusionloader import _native


class Rates:
    """Samples per second of work, of one CPU worker and of the GPU worker."""

    def __init__(self, queue: _native.ManagerQueue, cpu_workers: int) -> None:
        self._queue = queue
        self._cpu_workers = cpu_workers
        self._before = ((0, 0.0), (0, 0.0))

    def since_last(self) -> tuple[float | None, float | None]:
        """Returns both rates since the last call, ``None`` where a side has done nothing."""
        counted = [(record[5], record[6]) for record in self._queue.records()]
        cpu, gpu = counted[: self._cpu_workers], counted[self._cpu_workers :][:1]
        now = (_sum(cpu), _sum(gpu))
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
