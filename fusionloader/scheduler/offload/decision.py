"""FastFlow's decision: whether to offload, in which requests, and which share of the samples.

Um et al., "FastFlow: Accelerating Deep Learning Model Training with Smart Offloading of Input Data
Pipeline" (PVLDB 16(5), 2023), Algorithm 1 (§4) and the counters of §5.3.

The published code differs from the paper in the share. Where local workers are faster than remote
ones, it takes the middle between Lower and Upper; elsewhere the larger of the two. And it goes over
to R / (L + R) where L + R < G, not where Upper <= Lower. This follows the paper; the simulator
finds both as fast (docs/scale/remote_workers.md). The share is an upper limit here, since local
workers never wait for remote ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

SPEED_UP_THRESHOLD = 1.1
"""Training that could become no faster than by this factor is left alone."""

_TIE = 0.95


class Candidate(Enum):
    """What a request to a remote worker has: the paper's candidate pipelines p'1, p'2 and p'3.

    Of kinds that are about as good, the first one here is taken.
    """

    TINY_BATCH = "a tiny-batch a request"  # p'2: read there
    SHIP = "encoded bytes"  # p'1: a tiny-batch a request as well, read here and sent there
    MINI_BATCH = "a mini-batch a request"  # p'3: read there


@dataclass(frozen=True, slots=True)
class LocalMetrics:
    """What is measured while remote workers hold.

    Attributes:
        training_rate: samples per second of training that never waits; the paper's Gthp.
        local_rate: samples per second of training with local workers alone; Lthp.
        local_cost: CPU seconds of this machine for a sample that it prepares; Pcycle.
    """

    training_rate: float
    local_rate: float
    local_cost: float

    @property
    def speed_up(self) -> float:
        """How many times as fast training would be without waiting."""
        return self.training_rate / self.local_rate if self.local_rate > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class RemoteMetrics:
    """What is measured while remote workers take all they can, with one kind of request.

    Attributes:
        remote_rate: samples per second that they prepare; Rthp.
        remote_cost: CPU seconds of this machine for a sample that they prepare; Ocycle.
    """

    remote_rate: float
    remote_cost: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """The five metrics of Table 1 of the paper, for one kind of request.

    Samples per second, and CPU seconds of the training machine per sample; see ``LocalMetrics`` and
    ``RemoteMetrics``. The paper has MB/s and cycles; its formulas only use their ratios.
    """

    training_rate: float
    local_rate: float
    remote_rate: float
    remote_cost: float
    local_cost: float

    @classmethod
    def of(cls, local: LocalMetrics, remote: RemoteMetrics) -> Metrics:
        """Returns both together."""
        return cls(
            local.training_rate,
            local.local_rate,
            remote.remote_rate,
            remote.remote_cost,
            local.local_cost,
        )

    @property
    def overhead(self) -> float:
        """Ocycle / Pcycle: CPU time of a remote sample here, relative to a local one."""
        return self.remote_cost / self.local_cost if self.local_cost > 0 else float("inf")

    @property
    def estimate(self) -> float:
        """Samples per second with offloading, as line 7 of Algorithm 1 estimates them."""
        return self.local_rate * (1 - self.overhead) + self.remote_rate

    @property
    def upper(self) -> float:
        """Samples per second beyond which remote workers, or the network, would limit training."""
        return self.remote_rate

    @property
    def lower(self) -> float:
        """Samples per second to offload at least, lest local workers limit training."""
        return max(0.0, self.training_rate - self.local_rate) * (1 + self.overhead)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is left to remote workers.

    Attributes:
        ratio: the share of all samples that they may take, from 0 to 1.
        candidate: the kind of request; ``None`` where nothing is offloaded.
        reason: in words.
    """

    ratio: float
    candidate: Candidate | None
    reason: str


def stays_local(local: LocalMetrics) -> str | None:
    """Returns why nothing is to be offloaded, whatever remote workers can do (lines 3 and 4).

    ``None`` where they could help: only then are they worth measuring.
    """
    if local.training_rate <= 0:
        return "no samples were made while this was measured"
    if local.training_rate <= local.local_rate:
        return "training does not wait for samples"
    if local.speed_up < SPEED_UP_THRESHOLD:
        return (
            f"training would be {local.speed_up:.2f} times as fast at best, "
            f"less than {SPEED_UP_THRESHOLD}"
        )
    if local.local_rate > 0 and local.local_cost <= 0:
        return "local workers took no measurable CPU time"
    return None


def decide(local: LocalMetrics, remote: Mapping[Candidate, RemoteMetrics]) -> Decision:
    """Returns Algorithm 1's decision.

    Two rules are not the paper's. Kinds of requests that cost this machine as much CPU time as
    preparing the samples itself are left out: with them training would be slower than without. And
    a kind has to be better than a simpler one by more than measurements differ.
    """
    reason = stays_local(local)
    if reason is not None:
        return Decision(0.0, None, reason)
    measured = {kind: Metrics.of(local, metrics) for kind, metrics in remote.items()}
    useful = {
        kind: metrics
        for kind, metrics in measured.items()
        if metrics.remote_rate > 0 and (metrics.overhead < 1 or metrics.local_rate <= 0)
    }
    if not useful:
        return Decision(0.0, None, _useless(measured))
    highest = max(map(_estimate, useful.values()))
    best = next(
        kind for kind in Candidate if kind in useful and _estimate(useful[kind]) >= _TIE * highest
    )
    metrics = useful[best]
    ratio = offload_ratio(metrics)
    return Decision(
        ratio,
        best,
        f"training could be {local.speed_up:.2f} times as fast; remote workers prepare "
        f"{metrics.remote_rate:.0f} samples/s, local ones {metrics.local_rate:.0f}",
    )


def offload_ratio(metrics: Metrics) -> float:
    """Returns the share to offload, from 0 to 1 (lines 8 to 13)."""
    if metrics.training_rate <= metrics.local_rate or metrics.remote_rate <= 0:
        return 0.0
    if metrics.local_rate <= 0:
        return 1.0
    if metrics.lower < metrics.upper:
        return min(1.0, metrics.upper / metrics.training_rate)
    return metrics.remote_rate / (metrics.local_rate + metrics.remote_rate)


class OffloadCounters:
    """Says by counts of tiny-batches whether a remote worker may take the next one (§5.3).

    Attributes:
        ratio: the share of all that remote workers may take.
    """

    def __init__(self, ratio: float, local: int = 0, remote: int = 0) -> None:
        """Begins to count at so many that either side has taken."""
        self.ratio = ratio
        self._local, self._remote = local, remote

    def may_offload(self, local: int, remote: int) -> bool:
        """Whether a remote worker may take the next one, after so many by either side."""
        local, remote = local - self._local, remote - self._remote
        return remote < self.ratio * (local + remote + 1)


def _estimate(metrics: Metrics) -> float:
    return metrics.remote_rate if metrics.local_rate <= 0 else metrics.estimate


def _useless(measured: Mapping[Candidate, Metrics]) -> str:
    if not any(metrics.remote_rate > 0 for metrics in measured.values()):
        return "remote workers prepared nothing"
    least = min(metrics.overhead for metrics in measured.values() if metrics.remote_rate > 0)
    return f"a remote sample costs this machine {least:.1f} times the CPU time of preparing it here"
