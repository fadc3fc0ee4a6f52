"""Measurements for FastFlow's decision while training runs: local workers alone, then remote ones.

The paper replays a batch to measure how fast training is by itself (§5.1). A loader cannot replay
the user's training step. It measures real steps without their waits for samples.

Remote workers are measured beside local ones, which never stop. If training no longer waits, remote
workers were not used to their full capacity. Their measured rate suffices then, and the share is no
larger than necessary.
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
"""Steps of a phase: the paper found 50 to 100 to suffice (§5.1)."""
_WINDOWS = 20  # maximum for each step: a phase ends even if training stands still
_ANSWERS = 5  # minimum length of a phase, in times of its slowest answer
_LEAST_BUSY = 1e-3  # fraction of the time: training that only waits still has a finite rate


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    """Measurements between two moments.

    Attributes:
        steps: number of batches that training took.
        seconds: length of the window.
        waited: part of ``seconds`` that training waited for batches.
        local_samples: number of samples made by local workers.
        remote_samples: number of samples made by remote workers.
        local_cpu_seconds: CPU time of local workers.
        remote_cpu_seconds: CPU time of this machine for samples made by remote workers.
        answer_seconds: longest time from a request to its answer.
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
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        slowest = max(self.answer_seconds, other.answer_seconds)
        return ProfileWindow(**sums | {"answer_seconds": slowest})

    def since(self, before: ProfileWindow, slowest: float) -> ProfileWindow:
        """Returns the growth of these sums since ``before``; ``slowest`` is the longest answer."""
        grown = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)}
        return ProfileWindow(**grown | {"answer_seconds": slowest})

    @property
    def usable(self) -> bool:
        """Whether all values are finite and none is negative."""
        return all(0 <= getattr(self, f.name) < math.inf for f in fields(self))

    def local_metrics(self) -> LocalMetrics:
        samples = self.local_samples + self.remote_samples
        busy = max(self.seconds - self.waited, _LEAST_BUSY * self.seconds)
        return LocalMetrics(
            training_rate=_ratio(samples, busy),
            local_rate=_ratio(self.local_samples, self.seconds),
            local_cost=_ratio(self.local_cpu_seconds, self.local_samples),
        )

    def remote_metrics(self) -> RemoteMetrics:
        return RemoteMetrics(
            remote_rate=_ratio(self.remote_samples, self.seconds),
            remote_cost=_ratio(self.remote_cpu_seconds, self.remote_samples),
        )


class ProfilePhase(Enum):
    """Phases of a profile: what is measured, and with which remote workers."""

    LOCAL = "local workers alone"  # remote workers pause
    REMOTE = "remote workers beside local ones"  # and take all they can
    DECIDED = "decided"  # remote workers take the decided share


class OffloadProfile:
    """Measures phase after phase, and decides in the end.

    Attributes:
        phase: current phase.
        local: metrics of the first phase, or metrics that were given.
        remote: metrics by kind of request, measured or given.
        decision: ``None`` before the last phase.
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
        """Starts with the first phase whose metrics are not given.

        Args:
            candidates: kinds of requests to compare.
            steps: number of steps of a phase.
            settling: number of steps at the beginning of a phase that do not count: those of the
                mini-batches in flight, which were made in the phase before.
            local: metrics of an earlier run, which are not measured again.
            remote: metrics of an earlier run, which are not measured again.
        """
        self._candidates = list(candidates)
        self._steps, self._settling = steps, settling
        self.local = local
        self.remote = dict(remote or {})
        self.decision: Decision | None = None
        self._enter()

    @property
    def candidate(self) -> Candidate | None:
        """The kind of request to use now; ``None`` while remote workers pause."""
        if self.phase is ProfilePhase.REMOTE:
            return next(kind for kind in self._candidates if kind not in self.remote)
        return None if self.decision is None else self.decision.candidate

    def observe(self, window: ProfileWindow) -> None:
        """Adds the window since the last call to the current phase, and ends the phase if due.

        A window with values that are negative or not finite is ignored.
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
