"""A simulated training with local and remote workers; the classes in scheduler/ take decisions."""

from __future__ import annotations

import random
from collections import deque

from fusionloader.cli.simulator.engine import Engine
from fusionloader.cli.simulator.machine import Cores, Link, MachineModel
from fusionloader.cli.simulator.offload_setup import (
    OffloadOutcome,
    OffloadSetup,
    OffloadShare,
    Policy,
    share_of_code,
)
from fusionloader.cli.simulator.times import draw_tiny_batches
from fusionloader.scheduler.offload.balance import Answer, LeaseLimit, low_stock, may_claim
from fusionloader.scheduler.offload.decision import Candidate, Metrics, OffloadCounters
from fusionloader.scheduler.offload.profile import OffloadProfile, ProfilePhase, ProfileWindow

_FEWEST_ANSWERS = 8  # before what they cost is believed
_SETTLING = 2  # times the mini-batches in flight: steps before any is counted


class _MiniBatch:
    """Tiny-batches, the smallest first, each with its seconds of a worker."""

    def __init__(self, costs: list[float]) -> None:
        self.costs = costs
        self.claimed = 0
        self.left = len(costs)

    def claim(self, count: int) -> float:
        """Returns the seconds of the next ``count`` together."""
        self.claimed += count
        return sum(self.costs[self.claimed - count : self.claimed])


class OffloadSimulation:
    """Runs one setup."""

    def __init__(self, setup: OffloadSetup) -> None:
        self._setup = setup
        self._random = random.Random(setup.seed)
        self._engine = engine = Engine()
        self._cores = Cores(engine, MachineModel(cores=setup.local_workers).speed)
        self._up = Link(engine, setup.network.bandwidth)
        self._down = Link(engine, setup.network.bandwidth)
        self._storage = Link(engine, setup.network.storage)
        self._batches: list[_MiniBatch] = []
        self._oldest_unclaimed = 0
        self._delivered = self._ready = 0  # mini-batches; ready: up to here all are complete
        lanes = [Link(engine, 1.0) for _ in range(setup.lanes)]  # remote cores: of seconds
        self._slots = deque(lane for _ in range(setup.depth) for lane in lanes)
        self._idle = setup.local_workers
        self._out = 0
        self._training_seconds = setup.batch_size / setup.training_rate  # of a step
        self._asked: float | None = None
        self._intervals: deque[float] = deque(maxlen=setup.window)  # between batches, seconds
        self._seen = ProfileWindow()  # since the start
        self._taken = [0, 0]  # tiny-batches, by local and by remote workers
        self._limit = self._new_limit()
        self._low = setup.low or low_stock(setup.window)
        self._profile = OffloadProfile(
            setup.candidates, steps=setup.profile_steps, settling=setup.window
        )
        self._counters: OffloadCounters | None = None
        self._told = ProfileWindow()  # what the profile has observed
        self._slowest = 0.0  # answer since then
        self._from: ProfileWindow | None = None  # when counting begins
        self._settle_until = _SETTLING * setup.window

    def run(self) -> OffloadOutcome:
        """Trains to the end."""
        setup = self._setup
        self._publish()
        self._ask()
        self._engine.run(done=self._finished)
        if not self._finished() or self._from is None:
            raise RuntimeError(f"the simulation stopped after {self._seen.steps} steps")
        seen, since = self._seen, self._from
        local = seen.local_samples - since.local_samples
        remote = seen.remote_samples - since.remote_samples
        seconds = seen.seconds - since.seconds
        # Neither mini-batches made before these steps count, nor those that are left at the end.
        samples = min((seen.steps - since.steps) * setup.batch_size, local + remote)
        return OffloadOutcome(
            setup,
            rate=samples / seconds,
            remote_share=remote / (local + remote),
            candidate=self._candidate,
        )

    def _new_limit(self) -> LeaseLimit:
        return LeaseLimit(max(1, self._setup.lanes * self._setup.depth), self._engine.now)

    def _finished(self) -> bool:
        begun = self._from
        return begun is not None and self._seen.steps - begun.steps >= self._setup.steps

    # ---- mini-batches --------------------------------------------------------------------------

    def _publish(self) -> None:
        setup = self._setup
        while len(self._batches) < self._delivered + setup.window:
            tiny_batches = draw_tiny_batches(
                setup.times, self._random, setup.batch_size, setup.tiny_batch_size
            )
            costs = [sum(sample.cpu_seconds for sample in tiny) for tiny in tiny_batches]
            self._batches.append(_MiniBatch(costs))
        self._wake()

    def _unclaimed(self) -> int | None:
        """The oldest mini-batch of which something is unclaimed."""
        while self._oldest_unclaimed < len(self._batches):
            batch = self._batches[self._oldest_unclaimed]
            if batch.claimed < len(batch.costs):
                return self._oldest_unclaimed
            self._oldest_unclaimed += 1
        return None

    def _done(self, number: int, count: int) -> None:
        self._batches[number].left -= count
        while self._ready < len(self._batches) and not self._batches[self._ready].left:
            self._ready += 1
        self._deliver()

    # ---- workers -------------------------------------------------------------------------------

    def _wake(self) -> None:
        while self._slots and self._may_offload() and self._offload():
            pass
        if self._setup.policy is not Policy.ONLY_REMOTE:
            while self._idle and self._work():
                pass

    def _work(self) -> bool:
        number = self._unclaimed()
        if number is None:
            return False
        seconds = self._batches[number].claim(1)
        self._taken[0] += 1
        self._idle -= 1

        def end() -> None:
            self._idle += 1
            samples = self._setup.tiny_batch_size
            self._seen += ProfileWindow(local_samples=samples, local_cpu_seconds=seconds)
            self._done(number, 1)
            self._wake()

        self._cores.run(seconds, end)
        return True

    def _offload(self) -> bool:
        setup, kind = self._setup, self._candidate
        assert kind is not None
        found = self._claim_remotely(kind)
        if found is None:
            return False
        number, count = found
        seconds = self._batches[number].claim(count)
        samples = count * setup.tiny_batch_size
        self._taken[1] += count
        self._out += 1
        lane, sent = self._slots.popleft(), self._engine.now
        delay = setup.network.round_trip / 2

        def arrived() -> None:
            self._storage.send(
                0 if kind is Candidate.SHIP else samples * setup.workload.encoded_bytes, read
            )

        def read() -> None:
            lane.send(seconds, made)

        def made() -> None:
            self._down.send(samples * setup.workload.row_bytes, received, delay)

        def received() -> None:
            self._cores.run(setup.trainer_seconds(samples, kind), converted)

        def converted() -> None:
            self._out -= 1
            self._slots.append(lane)
            cost = setup.trainer_seconds(samples, kind)
            self._seen += ProfileWindow(remote_samples=samples, remote_cpu_seconds=cost)
            took = self._engine.now - sent
            self._slowest = max(self._slowest, took)
            if self._intervals:
                interval = sum(self._intervals) / len(self._intervals)
                answer = Answer(took, interval, setup.window)
                self._limit.answered(answer, self._engine.now)
            self._done(number, count)
            self._wake()

        if kind is Candidate.SHIP:
            self._up.send(samples * setup.workload.encoded_bytes, arrived, delay)
        else:
            self._engine.after(delay, arrived)
        return True

    def _claim_remotely(self, kind: Candidate) -> tuple[int, int] | None:
        if kind is not Candidate.MINI_BATCH:
            number = self._unclaimed()
            return None if number is None else (number, 1)
        for number in range(self._oldest_unclaimed, len(self._batches)):
            if not self._batches[number].claimed:
                return number, len(self._batches[number].costs)
        return None

    # ---- policies ------------------------------------------------------------------------------

    @property
    def _candidate(self) -> Candidate | None:
        policy = self._setup.policy
        if policy is Policy.FASTFLOW:
            return self._profile.candidate
        return None if policy is Policy.NONE else Candidate.TINY_BATCH

    def _may_offload(self) -> bool:
        setup = self._setup
        if setup.policy in (Policy.ALL, Policy.ONLY_REMOTE):
            return True
        if self._candidate is None:
            return False
        if setup.limited and not self._limit.may_request(self._out, self._engine.now):
            return False
        if setup.policy is Policy.BALANCE:
            return may_claim(self._ready - self._delivered, self._low, self._overhead())
        return self._counters is None or self._counters.may_offload(*self._taken)

    def _overhead(self) -> float | None:
        seen = self._seen
        if seen.remote_samples < _FEWEST_ANSWERS * self._setup.tiny_batch_size:
            return None
        if not seen.local_samples:
            return None
        remote, local = seen.remote_metrics(), seen.local_metrics()
        return remote.remote_cost / local.local_cost

    def _metrics(self, kind: Candidate) -> Metrics:
        assert self._profile.local is not None
        return Metrics.of(self._profile.local, self._profile.remote[kind])

    def _observe(self) -> None:
        """A step has ended."""
        profiling = self._setup.policy is Policy.FASTFLOW
        if profiling and self._profile.phase is not ProfilePhase.DECIDED:
            before, seen = self._candidate, self._seen
            self._profile.observe(seen.since(self._told, self._slowest))
            self._told, self._slowest = seen, 0.0
            if self._candidate is not before:
                self._limit = self._new_limit()
            decision = self._profile.decision
            if decision is None:
                return
            self._settle_until = seen.steps + _SETTLING * self._setup.window
            ratio = decision.ratio
            if self._setup.share is OffloadShare.CODE and decision.candidate is not None:
                ratio = share_of_code(self._metrics(decision.candidate))
            self._counters = OffloadCounters(ratio, *self._taken)
        if self._from is None and self._seen.steps >= self._settle_until:
            self._from = self._seen

    # ---- training ------------------------------------------------------------------------------

    def _ask(self) -> None:
        self._asked = self._engine.now
        self._deliver()

    def _deliver(self) -> None:
        if self._asked is None or self._ready == self._delivered:
            return
        waited = self._engine.now - self._asked
        self._asked = None
        self._delivered += 1
        step = self._training_seconds
        self._intervals.append(waited + step)

        def end() -> None:
            self._seen += ProfileWindow(steps=1, seconds=waited + step, waited=waited)
            self._observe()
            self._ask()

        self._engine.after(step, end)
        self._publish()


def simulate_offload(setup: OffloadSetup) -> OffloadOutcome:
    """Runs a setup."""
    return OffloadSimulation(setup).run()
