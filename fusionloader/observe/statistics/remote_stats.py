"""What is counted of workers on other machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fusionloader.observe.statistics.lane_counts import COUNTED, LaneCounts, LaneState
from fusionloader.options.remote_settings import Offload
from fusionloader.system.amounts import mib

if TYPE_CHECKING:  # the counters are read where the native part is missing, too
    from fusionloader.sharing.remote.remote_counters import RemoteCounters

_STATES: dict[LaneState, Literal["serving", "away", "refused"]] = {
    LaneState.UNUSED: "away",
    LaneState.SERVING: "serving",
    LaneState.AWAY: "away",
    LaneState.REFUSED: "refused",
}


@dataclass(frozen=True, slots=True)
class RemoteWorkerStats:
    """A remote worker, all of its cores together.

    Attributes:
        address: address of the worker, as ``host:port``.
        state: ``"serving"``; ``"away"`` where it does not answer now; ``"refused"`` where it does
            not take this loader's work.
        lanes: number of its cores that this loader sends requests to.
        samples: number of samples that it has made.
        tiny_batches: number of tiny-batches that it has made.
        leases_lost: tiny-batches that it did not return in time; others made them.
        declined: tiny-batches that it returned unmade, for this machine to make.
        bytes_sent: bytes sent to it: requests, and files where they are shipped.
        bytes_received: bytes of results received from it.
        round_trip_seconds: mean time from a request to its answer; ``None`` before the first.
        busy_seconds: time that it worked on requests, summed over its cores, in seconds.
    """

    address: str
    state: Literal["serving", "away", "refused"]
    lanes: int
    samples: int
    tiny_batches: int
    leases_lost: int
    declined: int
    bytes_sent: int
    bytes_received: int
    round_trip_seconds: float | None
    busy_seconds: float


@dataclass(frozen=True, slots=True)
class RemoteStats:
    """A loader with ``remote``.

    Attributes:
        offload: the policy.
        off_ratio: the share of samples that FastFlow's policy leaves to them; ``None`` with another
            policy.
        samples: number of samples made by remote workers.
        share: fraction of all samples of workers, 0 to 1; ``None`` before there are any.
        leases_lost: tiny-batches that did not come in time, and were made by others.
        declined: tiny-batches that remote workers have left to this machine.
        bytes_sent: bytes sent to all remote workers.
        bytes_received: bytes received from all remote workers.
        cpu_seconds: processor time of this machine for requests and results, in seconds.
        workers: statistics of each remote worker.
        fleet_workers: number of workers that take requests now.
        needed: number of workers that Ray should run for this loader; ``None`` with addresses, and
            where one runs on each free CPU.
        ranks: number of ranks of this machine that share the workers that Ray starts.
    """

    offload: Offload
    off_ratio: float | None
    samples: int
    share: float | None
    leases_lost: int
    declined: int
    bytes_sent: int
    bytes_received: int
    cpu_seconds: float
    workers: tuple[RemoteWorkerStats, ...]
    fleet_workers: int = 0
    needed: int | None = None
    ranks: int = 1

    def explain(self) -> str:
        """Returns a line of what they have done."""
        serving = sum(worker.state == "serving" for worker in self.workers)
        text = f"Remote workers: {serving} of {len(self.workers)} serve"
        if self.samples:
            share = "" if self.share is None else f" ({self.share:.0%} of all)"
            text += f", {self.samples} samples{share}, {mib(self.bytes_received)} received"
            text += f", {1e6 * self.cpu_seconds / self.samples:.0f} us of this machine a sample"
        if self.leases_lost or self.declined:
            text += f"; {self.leases_lost} tiny-batches lost, {self.declined} declined"
        return text + "."


def remote_stats(
    board: RemoteCounters,
    offload: Offload,
    local_samples: int,
    fleet_workers: int,
    needed: int | None,
    ranks: int,
) -> RemoteStats:
    """Returns what a board says; ``local_samples`` were made by this machine's workers."""
    lanes = board.lanes()
    sums = _sum(lanes)
    made = sums["samples"] + local_samples
    return RemoteStats(
        offload=offload,
        off_ratio=board.off_millionths / 1e6 if offload == "fastflow" else None,
        share=sums["samples"] / made if made else None,
        cpu_seconds=board.proxy_cpu_ns / 1e9,
        workers=tuple(_workers(lanes)),
        fleet_workers=fleet_workers,
        needed=needed,
        ranks=ranks,
        **{name: sums[name] for name in COUNTED if name in RemoteStats.__slots__},
    )


def _sum(lanes: Sequence[LaneCounts]) -> dict[str, int]:
    return {name: sum(getattr(lane, name) for lane in lanes) for name in COUNTED}


def _workers(lanes: Sequence[LaneCounts]) -> Iterable[RemoteWorkerStats]:
    for address in dict.fromkeys(lane.address for lane in lanes):
        own = [lane for lane in lanes if lane.address == address]
        sums = _sum(own)
        answers = sums["tiny_batches"] + sums["declined"]
        states = {lane.state for lane in own}
        best = next((each for each in _STATES if each in states and each), LaneState.AWAY)
        yield RemoteWorkerStats(
            address=address,
            state=_STATES[best],
            lanes=len(own),
            round_trip_seconds=sums["round_trip_ns"] / 1e9 / answers if answers else None,
            busy_seconds=sums["busy_ns"] / 1e9,
            **{name: sums[name] for name in COUNTED if name in RemoteWorkerStats.__slots__},
        )
