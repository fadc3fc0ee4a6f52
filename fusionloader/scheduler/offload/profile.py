"""Measuring for FastFlow's decision while training runs: local workers alone, then remote ones.

The paper replays a batch to find out how fast training is by itself (§5.1). A loader cannot replay
the user's training step: it takes the time of real steps without their waits for samples.

Remote workers are measured beside local ones, which never stop. Where training waits no more, they
had no chance to do all they could; what they did then suffices, so that the share is no larger than
it has to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum

from fusionloader.scheduler.offload.decision import (
    Candidate,
    Decision,
    LocalMetrics,
    RemoteMetrics,
    decide,
    stays_local,
)

STEPS = 50
"""Steps of a phase: the fewest of the 50 to 100 that the paper found to suffice (§5.1)."""
_WINDOWS = 20  # for each step, at most: a phase ends though training stands still
_ANSWERS = 5  # times the slowest answer, at least: a phase counts more than those that began early
_LEAST_BUSY = 1e-3  # of the time: a training that does nothing but wait has a rate all the same


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    """What happened between two moments.

    Attributes:
        steps: batches that training took.
        seconds: of time.
        waited: of them, that training waited for batches.
        local_samples: made by local workers.
        remote_samples: made by remote workers.
        local_cpu_seconds: of local workers.
        remote_cpu_seconds: of this machine, for what remote workers made.
        answer_seconds: from a request to its answer, of the slowest one that came.
    """

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    local_samples: int = 0
    remote_samples: int = 0
    local_cpu_seconds: float = 0.0
    remote_cpu_seconds: float = 0.0
    answer_seconds: float = 0.0

    def __add__(self, other: ProfileWindow) -> ProfileWindow:
        return ProfileWindow(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.waited + other.waited,
            self.local_samples + other.local_samples,
            self.remote_samples + other.remote_samples,
            self.local_cpu_seconds + other.local_cpu_seconds,
            self.remote_cpu_seconds + other.remote_cpu_seconds,
            max(self.answer_seconds, other.answer_seconds),
        )

    def since(self, before: ProfileWindow, slowest: float) -> ProfileWindow:
        """Returns what these sums have grown by; ``slowest`` is the answer that took longest."""
        grown = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)}
        return ProfileWindow(**grown | {"answer_seconds": slowest})

    @property
    def usable(self) -> bool:
        """Whether all of it are finite numbers, and none is negative."""
        return all(0 <= getattr(self, f.name) < math.inf for f in fields(self))

    def local_metrics(self) -> LocalMetrics:
        """Returns what it says about training and local workers."""
        samples = self.local_samples + self.remote_samples
        busy = max(self.seconds - self.waited, _LEAST_BUSY * self.seconds)
        return LocalMetrics(
            training_rate=_ratio(samples, busy),
            local_rate=_ratio(self.local_samples, self.seconds),
            local_cost=_ratio(self.local_cpu_seconds, self.local_samples),
        )

    def remote_metrics(self) -> RemoteMetrics:
        """Returns what it says about remote workers."""
        return RemoteMetrics(
            remote_rate=_ratio(self.remote_samples, self.seconds),
            remote_cost=_ratio(self.remote_cpu_seconds, self.remote_samples),
        )


class ProfilePhase(Enum):
    """What is measured."""

    LOCAL = "local workers alone"  # remote workers hold
    REMOTE = "remote workers beside local ones"  # they take all they can
    DECIDED = "decided"  # they take the share of the decision


class OffloadProfile:
    """Goes from phase to phase with what it observes, to a decision.

    Attributes:
        phase: what is measured now.
        local: what the first phase measured, or what was known before.
        remote: what was measured of each kind of request, or was known before.
        decision: ``None`` until it is taken.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        steps: int = STEPS,
        settling: int = 0,
        local: LocalMetrics | None = None,
        remote: dict[Candidate, RemoteMetrics] | None = None,
    ) -> None:
        """Begins with the first phase whose metrics are not known.

        Args:
            candidates: kinds of requests to compare.
            steps: of a phase.
            settling: steps at the beginning of a phase that are not counted: as many as there are
                mini-batches in flight, which were made in the phase before.
            local: metrics that were stored.
            remote: metrics that were stored.
        """
        self._candidates = list(candidates)
        self._steps, self._settling = steps, settling
        self.local = local
        self.remote = dict(remote or {})
        self.decision: Decision | None = None
        self._enter()

    @property
    def candidate(self) -> Candidate | None:
        """The kind of request to use now; ``None`` while remote workers hold."""
        if self.phase is ProfilePhase.REMOTE:
            return next(kind for kind in self._candidates if kind not in self.remote)
        return None if self.decision is None else self.decision.candidate

    def observe(self, window: ProfileWindow) -> None:
        """Learns what has happened since the last call, in this phase; ends a phase with it.

        A window with values that are negative or not finite counts for nothing.
        """
        if self.phase is ProfilePhase.DECIDED:
            return
        self._windows += 1
        if window.usable:
            if self._settled >= self._settling:
                self._seen += window
            self._settled += window.steps
        seen, limit = self._seen, _WINDOWS * (self._steps + self._settling)
        enough = seen.steps >= self._steps and seen.seconds >= _ANSWERS * seen.answer_seconds
        if not enough and self._windows < limit:
            return
        kind = self.candidate
        if kind is None:
            self.local = seen.local_metrics()
        else:
            self.remote[kind] = seen.remote_metrics()
        self._enter()

    def _enter(self) -> None:
        self._seen, self._windows, self._settled = ProfileWindow(), 0, 0
        if self.local is None:
            self.phase = ProfilePhase.LOCAL
        elif stays_local(self.local) is None and set(self._candidates) - set(self.remote):
            self.phase = ProfilePhase.REMOTE
        else:
            self.phase = ProfilePhase.DECIDED
            known = {kind: self.remote[kind] for kind in self._candidates if kind in self.remote}
            self.decision = decide(self.local, known)


def _ratio(amount: float, of: float) -> float:
    found = amount / of if of > 0 else 0.0
    return found if math.isfinite(found) else 0.0
