"""Simulated time: actions in order of time, and a device that two tenants share."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

Action = Callable[[], None]


class Engine:
    """The clock and the planned actions; simultaneous ones run in the order they were planned.

    Attributes:
        now: seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Action]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Action) -> None:
        """Plans an action.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"an action {-seconds} s ago cannot be planned")
        heapq.heappush(self._planned, (self.now + seconds, next(self._order), action))

    def run(self, done: Callable[[], bool] = lambda: False) -> None:
        """Runs actions until none is planned or ``done()`` is true."""
        while self._planned and not done():
            self.now, _, action = heapq.heappop(self._planned)
            action()


class Tenant(Enum):
    """A user of the device."""

    TRAINING = "training"
    WORKER = "worker"


@dataclass(slots=True)
class _Work:
    remaining: float  # seconds at full speed
    action: Action
    since: float
    speed: float
    version: int = field(default=0)


class SimulatedDevice:
    """Runs one task of each tenant at a time, more slowly while both have one.

    ``beside`` is the speed of each tenant while the other one has a task, relative to alone.
    """

    def __init__(self, engine: Engine, beside: dict[Tenant, float]) -> None:
        self._engine = engine
        self._beside = beside
        self._work: dict[Tenant, _Work] = {}

    def busy(self, tenant: Tenant) -> bool:
        """Whether the tenant has work on the device."""
        return tenant in self._work

    def start(self, tenant: Tenant, seconds: float, action: Action) -> None:
        """Begins work that takes ``seconds`` alone; ``action`` is called at its end.

        Raises:
            RuntimeError: the tenant has work on the device already.
        """
        if tenant in self._work:
            raise RuntimeError(f"{tenant.value} is on the device already")
        self._work[tenant] = _Work(seconds, action, self._engine.now, 1.0)
        self._plan()

    def _plan(self) -> None:
        """Subtracts what was done at the old speeds and plans the ends at the new ones."""
        shared = len(self._work) > 1
        for tenant, work in self._work.items():
            work.remaining -= (self._engine.now - work.since) * work.speed
            work.since = self._engine.now
            work.speed = self._beside[tenant] if shared else 1.0
            work.version += 1
            seconds = max(work.remaining, 0.0) / work.speed
            self._engine.after(seconds, self._end(tenant, work, work.version))

    def _end(self, tenant: Tenant, work: _Work, version: int) -> Action:
        def end() -> None:
            if work.version != version or self._work.get(tenant) is not work:
                return  # its speed has changed since: another end is planned
            del self._work[tenant]
            self._plan()
            work.action()

        return end
