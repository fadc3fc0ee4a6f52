"""FastFlow's decision: whether to offload, in which requests, and which share of the samples.

Um et al., "FastFlow: Accelerating Deep Learning Model Training with Smart Offloading of Input Data
Pipeline" (PVLDB 16(5), 2023), Algorithm 1 (§4) and the counters of §5.3.

The published code computes the share differently than the paper. Where local workers are faster
than remote ones, it takes the mean of Lower and Upper, elsewhere the larger of the two. It uses
R / (L + R) where L + R < G, not where Upper <= Lower. This module follows the paper; in the
simulator both are equally fast (docs/scale/remote_balance.md). The share is an upper limit here,
since local workers never wait for remote ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

SPEED_UP_THRESHOLD = 1.1
"""Nothing is offloaded if training could become faster by less than this factor."""

_TIE = 0.95  # fraction of the best estimate from which on a kind of request is as good


class Candidate(Enum):
    """Kinds of requests to a remote worker: the paper's candidate pipelines p'1, p'2 and p'3.

    Of kinds that are about equally good, the first one here is used.
    """

    TINY_BATCH = "a tiny-batch a request"  # p'2: the remote worker reads
    SHIP = "encoded bytes"  # p'1: also of a tiny-batch; this machine reads
    MINI_BATCH = "a mini-batch a request"  # p'3: the remote worker reads


@dataclass(frozen=True, slots=True)
class LocalMetrics:
    """Measurements while remote workers pause.

    Attributes:
        training_rate: samples per second of training that never waits; the paper's Gthp.
        local_rate: samples per second of training with local workers alone; Lthp.
        local_cost: CPU seconds of this machine per sample that it prepares; Pcycle.
    """

    training_rate: float
    local_rate: float
    local_cost: float

    @property
    def speed_up(self) -> float:
        """Factor by which training would be faster without waiting."""
        return self.training_rate / self.local_rate if self.local_rate > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class RemoteMetrics:
    """Measurements while remote workers take all they can, with one kind of request.

    Attributes:
        remote_rate: samples per second that remote workers prepare; Rthp.
        remote_cost: CPU seconds of this machine per sample that they prepare; Ocycle.
    """

    remote_rate: float
    remote_cost: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """The five metrics of Table 1 of the paper, for one kind of request.

    The fields are those of ``LocalMetrics`` and ``RemoteMetrics``. The paper measures in MB/s and
    cycles; its formulas only use ratios.
    """

    training_rate: float
    local_rate: float
    remote_rate: float
    remote_cost: float
    local_cost: float

    @classmethod
    def of(cls, local: LocalMetrics, remote: RemoteMetrics) -> Metrics:
        return cls(
            local.training_rate,
            local.local_rate,
            remote.remote_rate,
            remote.remote_cost,
            local.local_cost,
        )

    @property
    def overhead(self) -> float:
        """CPU time of this machine per remote sample over that per local one: Ocycle / Pcycle."""
        return self.remote_cost / self.local_cost if self.local_cost > 0 else float("inf")

    @property
    def estimate(self) -> float:
        """Samples per second with offloading, by line 7 of Algorithm 1."""
        return self.local_rate * (1 - self.overhead) + self.remote_rate

    @property
    def upper(self) -> float:
        """Maximum rate to offload: beyond it, remote workers or the network limit training."""
        return self.remote_rate

    @property
    def lower(self) -> float:
        """Minimum rate to offload: below it, local workers limit training."""
        return max(0.0, self.training_rate - self.local_rate) * (1 + self.overhead)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is offloaded to remote workers.

    Attributes:
        ratio: maximum fraction of all samples that remote workers take, 0 to 1.
        candidate: kind of request; ``None`` if nothing is offloaded.
        reason: reason for the decision, in words.
    """

    ratio: float
    candidate: Candidate | None
    reason: str


def stays_local(local: LocalMetrics) -> str | None:
    """Returns why nothing should be offloaded, whatever remote workers can do (lines 3 and 4).

    ``None`` if remote workers could help: only then they need to be measured.
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

    Two rules are not the paper's. A kind of request is left out if it costs this machine as much
    CPU time as preparing the samples itself: it would slow training down. And a kind has to be
    better than a simpler one by more than the error of measurement.
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
    """Returns the fraction of samples to offload, 0 to 1 (lines 8 to 13)."""
    if metrics.training_rate <= metrics.local_rate or metrics.remote_rate <= 0:
        return 0.0
    if metrics.local_rate <= 0:
        return 1.0
    if metrics.lower < metrics.upper:
        return min(1.0, metrics.upper / metrics.training_rate)
    return metrics.remote_rate / (metrics.local_rate + metrics.remote_rate)


class OffloadCounters:
    """Limits remote workers to a fraction of the tiny-batches by counting them (§5.3).

    Attributes:
        ratio: maximum fraction of tiny-batches that remote workers take, 0 to 1.
    """

    def __init__(self, ratio: float, local: int = 0, remote: int = 0) -> None:
        """Starts from the numbers of tiny-batches that either side has taken."""
        self.ratio = ratio
        self._local, self._remote = local, remote

    def may_offload(self, local: int, remote: int) -> bool:
        """Whether a remote worker may take the next one; arguments as in ``__init__``."""
        local, remote = local - self._local, remote - self._remote
        return remote < self.ratio * (local + remote + 1)


def _estimate(metrics: Metrics) -> float:
    return metrics.remote_rate if metrics.local_rate <= 0 else metrics.estimate


def _useless(measured: Mapping[Candidate, Metrics]) -> str:
    if not any(metrics.remote_rate > 0 for metrics in measured.values()):
        return "remote workers prepared nothing"
    least = min(metrics.overhead for metrics in measured.values() if metrics.remote_rate > 0)
    return f"a remote sample costs this machine {least:.1f} times the CPU time of preparing it here"
