"""When lanes may claim, and how much: the offload policies, fed with what queue and board say.

The rules themselves are in scheduler/offload/, without clock or process.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import Protocol

from fusionloader import _native
from fusionloader.scheduler.offload.balance import Answer, LeaseLimit, low_stock, may_claim
from fusionloader.scheduler.offload.decision import Candidate, OffloadCounters
from fusionloader.scheduler.offload.profile import OffloadProfile, ProfilePhase, ProfileWindow
from fusionloader.sharing.remote.offload_metrics import MetricKeys, MetricStore
from fusionloader.sharing.remote.proxy.greeting import RemoteWork
from fusionloader.sharing.remote.remote_counters import LANES, RemoteCounters
from fusionloader.sharing.remote.user_code.layouts import LayoutRows

_FEW_SAMPLES = 200  # too few to tell what one costs


class Observer:
    """Reads them from the queue and the counters."""

    def __init__(
        self,
        queue: _native.WorkerQueue,
        counters: RemoteCounters,
        local_workers: int,
        first_worker: int,
    ) -> None:
        """This machine's workers have the numbers below ``local_workers``, lanes others."""
        self._queue, self._counters = queue, counters
        self._local, self._first = local_workers, first_worker

    def observe(self) -> ProfileWindow:
        """Returns sums as they are now: steps since the first iterator, samples of this one."""
        local_samples, local_seconds = self._queue.work_of(0, self._local)
        remote_samples, _ = self._queue.work_of(self._first, LANES)
        counters = self._counters
        return ProfileWindow(
            steps=counters.steps,
            seconds=counters.step_ns / 1e9,
            waited=counters.waited_ns / 1e9,
            local_samples=local_samples,
            local_cpu_seconds=local_seconds,
            remote_samples=remote_samples,
            remote_cpu_seconds=counters.proxy_cpu_ns / 1e9,
        )

    def samples(self) -> tuple[int, int]:
        """Returns the samples of local and of remote workers."""
        local, remote = self._queue.work_of(0, self._local), self._queue.work_of(self._first, LANES)
        return local[0], remote[0]


class Gate(Protocol):
    """Decides for all lanes of a loader, from their threads; ``look`` is the main thread's."""

    def request(self, queue: _native.WorkerQueue) -> Candidate | None:
        """Returns what a lane may ask for now, ``None`` for nothing; ``queue`` is the lane's."""

    def claimed(self) -> None:
        """A request is on its way."""

    def answered(self, seconds: float) -> None:
        """It was answered, after so long."""

    def lost(self) -> None:
        """It will not be."""

    def look(self, most: int) -> None:
        """Learns what has happened, and how many requests there can be at a time."""


class OpenGate:
    """Leaves to remote workers all that they take."""

    def request(self, queue: _native.WorkerQueue) -> Candidate | None:
        """Returns a tiny-batch at a time."""
        return Candidate.TINY_BATCH

    def claimed(self) -> None:
        """Does nothing."""

    def answered(self, seconds: float) -> None:
        """Does nothing."""

    def lost(self) -> None:
        """Does nothing."""

    def look(self, most: int) -> None:
        """Does nothing."""


class LayoutGate:
    """Lets lanes ask for samples of user code as soon as this machine's have settled their layout.

    It depends on what the first sample turns out to be, not on how fast it is made.
    """

    def __init__(self, gate: Gate, rows: LayoutRows) -> None:
        """From then on ``gate`` decides."""
        self._gate, self._rows = gate, rows
        self.claimed, self.answered, self.lost = gate.claimed, gate.answered, gate.lost
        self.look = gate.look

    def request(self, queue: _native.WorkerQueue) -> Candidate | None:
        """Returns nothing before."""
        return None if self._rows.settled(queue) is None else self._gate.request(queue)


class BalanceGate:
    """Claims decide, local workers come first, and answers have to come in time."""

    def __init__(self, observer: Observer, in_flight: int) -> None:
        """``in_flight`` mini-batches are made at most at a time."""
        self._observer = observer
        self._in_flight, self._low = in_flight, low_stock(in_flight)
        self._lock = threading.Lock()
        self._most = 1
        self._limit = LeaseLimit(self._most, time.monotonic())
        self._out = 0
        self._overhead: float | None = None
        self._begun: ProfileWindow | None = None
        self._seen: deque[ProfileWindow] = deque(maxlen=64)
        self._step_seconds = math.inf

    def request(self, queue: _native.WorkerQueue) -> Candidate | None:
        """Returns a tiny-batch at a time, while stock is short and answers come in time."""
        if not may_claim(queue.ready(), self._low, self._overhead):
            return None
        return Candidate.TINY_BATCH if self.has_capacity() else None

    def has_capacity(self) -> bool:
        """Whether one more request may be under way."""
        with self._lock:
            return self._limit.may_ask(self._out, time.monotonic())

    def claimed(self) -> None:
        """Counts what is out."""
        with self._lock:
            self._out += 1

    def answered(self, seconds: float) -> None:
        """Learns whether it came in time."""
        answer = Answer(seconds, self._step_seconds, self._in_flight)
        with self._lock:
            self._out -= 1
            self._limit.answered(answer, time.monotonic())

    def lost(self) -> None:
        """Counts what is out."""
        with self._lock:
            self._out -= 1

    def renew(self) -> None:
        """Forgets how long answers took: requests are others from now on."""
        with self._lock:
            self._limit = LeaseLimit(self._most, time.monotonic())

    def look(self, most: int) -> None:
        """Learns what a remote sample costs here, and how long steps take."""
        now, self._most = self._observer.observe(), max(most, 1)
        with self._lock:
            self._limit.allow(self._most)
        self._seen.append(now)
        while len(self._seen) > 2 and now.steps - self._seen[1].steps >= self._in_flight:
            self._seen.popleft()
        steps = now.steps - self._seen[0].steps
        if steps >= self._in_flight:
            self._step_seconds = (now.seconds - self._seen[0].seconds) / steps
        self._note_cost(now)

    def _note_cost(self, now: ProfileWindow) -> None:
        """The processor time of starting is not counted."""
        if self._begun is None:
            self._begun = now if now.remote_samples else None
            return
        remote = now.remote_samples - self._begun.remote_samples
        if remote >= _FEW_SAMPLES and now.local_samples and now.local_cpu_seconds > 0:
            here = (now.remote_cpu_seconds - self._begun.remote_cpu_seconds) / remote
            self._overhead = here / (now.local_cpu_seconds / now.local_samples)


class FastFlowGate:
    """Measures for FastFlow's decision, then keeps to the share by counters."""

    def __init__(
        self,
        counters: RemoteCounters,
        observer: Observer,
        in_flight: int,
        candidates: list[Candidate],
        keys: MetricKeys,
    ) -> None:
        """Begins with what is known of earlier runs; ``candidates`` are compared."""
        self._balance = BalanceGate(observer, in_flight)
        self._remote_counters, self._observer, self._keys = counters, observer, keys
        self._store = MetricStore()
        self._profile = OffloadProfile(
            candidates,
            settling=in_flight,
            local=self._store.local(keys),
            remote=self._store.remote(keys),
        )
        self._before: ProfileWindow | None = None
        self._slowest = 0.0
        self._counters: OffloadCounters | None = None

    def request(self, queue: _native.WorkerQueue) -> Candidate | None:
        """Returns the kind of request that is measured, or was chosen, within the share."""
        candidate, counters = self._profile.candidate, self._counters
        if candidate is None or counters is None:
            return candidate
        local, remote = self._observer.samples()
        within = counters.may_offload(local, remote) and self._balance.has_capacity()
        return candidate if within else None

    def claimed(self) -> None:
        """Counts what is out."""
        self._balance.claimed()

    def answered(self, seconds: float) -> None:
        """Learns how long answers take."""
        self._slowest = max(self._slowest, seconds)
        self._balance.answered(seconds)

    def lost(self) -> None:
        """Counts what is out."""
        self._balance.lost()

    def look(self, most: int) -> None:
        """Goes on with the measurement when training has taken steps."""
        self._balance.look(most)
        now, before = self._observer.observe(), self._before
        if before is None or self._profile.phase is ProfilePhase.DECIDED:
            self._before = now
            self._count_from(now)
            return
        if now.steps == before.steps or (not most and self._profile.phase is ProfilePhase.REMOTE):
            return
        slowest, self._slowest = self._slowest, 0.0
        phase = self._profile.phase, self._profile.candidate
        self._profile.observe(now.since(before, slowest))
        self._before = now
        if (self._profile.phase, self._profile.candidate) != phase:
            self._balance.renew()
            self._save()

    def _save(self) -> None:
        if self._profile.local is not None:
            self._store.save_local(self._keys, self._profile.local)
        self._store.save_remote(self._keys, self._profile.remote)

    def _count_from(self, now: ProfileWindow) -> None:
        decision = self._profile.decision
        if decision is not None and self._counters is None:
            self._counters = OffloadCounters(decision.ratio, now.local_samples, now.remote_samples)
            self._remote_counters.off_millionths = round(decision.ratio * 1e6)


def make_gate(
    work: RemoteWork, counters: RemoteCounters, observer: Observer, keys: MetricKeys
) -> Gate:
    """Returns the gate of the policy that a loader has."""
    if work.offload == "all":
        return OpenGate()
    if work.offload == "balance":
        return BalanceGate(observer, work.in_flight)
    return FastFlowGate(counters, observer, work.in_flight, _candidates(work), keys)


def _candidates(work: RemoteWork) -> list[Candidate]:
    if work.code is not None:
        return [Candidate.TINY_BATCH, Candidate.MINI_BATCH]
    if work.image is not None or work.data == "ship":
        return [Candidate.SHIP]
    shared = [Candidate.TINY_BATCH, Candidate.MINI_BATCH]
    return shared if work.data == "shared" else [*shared, Candidate.SHIP]
