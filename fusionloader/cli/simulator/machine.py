"""What CPU workers share: cores, and a storage that delivers so many bytes a second."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusionloader.cli.simulator.engine import Action, Engine
from fusionloader.cli.simulator.times import Sample


@dataclass(frozen=True, slots=True)
class Storage:
    """A device or a network that all workers read from, one file after the other.

    Attributes:
        bandwidth: bytes a second, for all readers together.
        latency: seconds before the bytes of a file begin to come; those of several overlap.
        wake: seconds from the arrival of a file until the worker that waits for it runs.
    """

    bandwidth: float
    latency: float = 0.0
    wake: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineModel:
    """The machine under a simulated training.

    Attributes:
        cores: number of cores for workers and training; ``None``: each process has its own.
        beside: speed of a core while all ``measured`` are busy, 1 being alone: they share caches
            and memory.
        measured: cores that were busy when ``beside`` was measured.
        storage: where files come from; ``None``: from the file cache, whose cost is CPU time.
    """

    cores: float | None = None
    beside: float = 1.0
    measured: int = 1
    storage: Storage | None = None

    def speed(self, demand: float) -> float:
        """Returns the speed of each of those who together want ``demand`` cores."""
        if self.cores is None:
            return 1.0
        busy = min(demand, self.cores)
        share = min(1.0, max(0.0, busy - 1) / (self.measured - 1)) if self.measured > 1 else 0.0
        return min(1.0, self.cores / demand) * (1.0 - (1.0 - self.beside) * share)


class Cores:
    """Shared evenly by all who have work, each of whom wants so many cores.

    All go at the same relative speed, so that one clock of work done serves for all of them.
    """

    def __init__(self, engine: Engine, speed: Callable[[float], float]) -> None:
        self._engine, self._speed = engine, speed
        self._work: list[tuple[float, int, float, Action]] = []
        self._order = itertools.count()
        self._done = self._since = self._demand = 0.0
        self._version = 0

    def run(self, seconds: float, action: Action, demand: float = 1.0) -> None:
        """Begins work that takes ``seconds`` alone; ``action`` is called at its end."""
        self._count()
        self._demand += demand
        heapq.heappush(self._work, (self._done + seconds, next(self._order), demand, action))
        self._plan()

    def _count(self) -> None:
        if self._work:
            self._done += (self._engine.now - self._since) * self._speed(self._demand)
        self._since = self._engine.now

    def _plan(self) -> None:
        self._version += 1
        if self._work:
            left = max(0.0, self._work[0][0] - self._done)
            version = self._version
            self._engine.after(left / self._speed(self._demand), lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return  # others have begun since: another end is planned
        until, _, demand, action = heapq.heappop(self._work)
        self._done, self._since = until, self._engine.now
        self._demand = self._demand - demand if self._work else 0.0
        self._plan()
        action()


class Link:
    """Delivers bytes in the order in which they were sent, at once if it has no bandwidth."""

    def __init__(self, engine: Engine, bandwidth: float | None) -> None:
        self._engine, self._bandwidth = engine, bandwidth
        self._free = 0.0  # when all is delivered that was asked for

    def send(self, nbytes: float, action: Action, delay: float = 0.0, latency: float = 0.0) -> None:
        """Calls ``action`` ``delay`` seconds after the bytes have come; latencies overlap."""
        now = self._engine.now
        if self._bandwidth is not None:
            self._free = max(now + latency, self._free) + nbytes / self._bandwidth
            delay += self._free - now
        self._engine.after(delay, action)


class SimulatedMachine:
    """Runs what workers and training do."""

    def __init__(self, engine: Engine, model: MachineModel) -> None:
        self._engine, self._storage = engine, model.storage
        self._link = Link(engine, model.storage.bandwidth if model.storage else None)
        self.cores = Cores(engine, model.speed)

    def make(self, samples: Sequence[Sample], end: Action) -> None:
        """A worker makes samples, one after the other."""
        if self._storage is None and not any(sample.waiting for sample in samples):
            self.cores.run(sum(sample.cpu_seconds for sample in samples), end)
            return

        def following(number: int) -> None:
            if number == len(samples):
                end()
                return
            sample = samples[number]
            compute = lambda: self.cores.run(  # noqa: E731
                sample.cpu_seconds, lambda: following(number + 1)
            )
            self._read(sample, compute)

        following(0)

    def _read(self, sample: Sample, action: Action) -> None:
        """Calls ``action`` when the worker has waited for the sample, and its bytes have come."""
        nbytes = sample.stored_bytes
        if self._storage is not None and nbytes:
            latency = self._storage.latency + sample.waiting
            self._link.send(nbytes, action, self._storage.wake, latency)
        elif sample.waiting:
            self._engine.after(sample.waiting, action)
        else:
            action()
