"""The offload policies: when lanes may claim, and how much.

The rules are in scheduler/offload/, without clock or process. Gates feed them with what the queue
and the counters say.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque

from fusionloader import _native
from fusionloader.scheduler.offload.balance import Answer, LeaseLimit, low_stock, may_claim
from fusionloader.scheduler.offload.decision import Candidate, OffloadCounters
from fusionloader.scheduler.offload.profile import OffloadProfile, ProfilePhase, ProfileWindow
from fusionloader.sharing.remote.offload_metrics import MetricKeys, MetricStore
from fusionloader.sharing.remote.proxy.greeting import RemoteWork
from fusionloader.sharing.remote.remote_counters import LANES, RemoteCounters

_FEW_SAMPLES = 200  # fewer do not tell what one costs


class Observer:
    """Reads the sums from the queue and the counters."""

    def __init__(
        self,
        queue: _native.WorkerQueue,
        counters: RemoteCounters,
        local_workers: int,
        first_worker: int,
    ) -> None:
        """``local_workers`` have the lowest numbers, lanes those from ``first_worker``."""
        self._queue, self._counters = queue, counters
        self._local, self._first = local_workers, first_worker

    def observe(self) -> ProfileWindow:
        """Returns the present sums: steps since the first iterator, samples of this iterator."""
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
        """Returns the numbers of samples of local and of remote workers."""
        local, remote = self._queue.work_of(0, self._local), self._queue.work_of(self._first, LANES)
        return local[0], remote[0]


class Gate:
    """Decides for all lanes of a loader, in their threads; the main thread calls ``look``.

    This one leaves to remote workers all that they take.
    """

    def request(self, queue: _native.WorkerQueue) -> Candidate | None:
        """Returns what a lane may request now, ``None`` for nothing; ``queue`` is the lane's."""
        return Candidate.TINY_BATCH

    def claimed(self) -> None:
        """Called when a request is about to be sent."""

    def answered(self, seconds: float) -> None:
        """Called when a request was answered, ``seconds`` after it was sent."""

    def lost(self) -> None:
        """Called when a request will not be answered."""

    def look(self, most: int) -> None:
        """Called periodically; ``most`` is how many requests the lanes can have under way."""


class BalanceGate(Gate):
    """Lets lanes claim while few mini-batches are ready, and as long as answers come in time."""

    def __init__(self, observer: Observer, in_flight: int) -> None:
        """``in_flight`` is the most mini-batches that are made at a time."""
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
        if not may_claim(queue.ready(), self._low, self._overhead):
            return None
        return Candidate.TINY_BATCH if self.has_capacity() else None

    def has_capacity(self) -> bool:
        with self._lock:
            return self._limit.may_request(self._out, time.monotonic())

    def claimed(self) -> None:
        with self._lock:
            self._out += 1

    def answered(self, seconds: float) -> None:
        answer = Answer(seconds, self._step_seconds, self._in_flight)
        with self._lock:
            self._out -= 1
            self._limit.answered(answer, time.monotonic())

    def lost(self) -> None:
        with self._lock:
            self._out -= 1

    def renew(self) -> None:
        """Drops the times of answers, after the kind of requests has changed."""
        with self._lock:
            self._limit = LeaseLimit(self._most, time.monotonic())

    def look(self, most: int) -> None:
        """Updates what a remote sample costs this machine, and how long a step takes."""
        now, self._most = self._observer.observe(), max(most, 1)
        with self._lock:
            self._limit.allow(self._most)
        self._seen.append(now)
        # The shortest window that has `in_flight` steps or more.
        while len(self._seen) > 2 and now.steps - self._seen[1].steps >= self._in_flight:
            self._seen.popleft()
        steps = now.steps - self._seen[0].steps
        if steps >= self._in_flight:
            self._step_seconds = (now.seconds - self._seen[0].seconds) / steps
        self._note_cost(now)

    def _note_cost(self, now: ProfileWindow) -> None:
        """Updates the cost, without the processor time before the first remote samples."""
        if self._begun is None:
            self._begun = now if now.remote_samples else None
            return
        remote = now.remote_samples - self._begun.remote_samples
        if remote >= _FEW_SAMPLES and now.local_samples and now.local_cpu_seconds > 0:
            here = (now.remote_cpu_seconds - self._begun.remote_cpu_seconds) / remote
            self._overhead = here / (now.local_cpu_seconds / now.local_samples)


class FastFlowGate(BalanceGate):
    """Measures what FastFlow's decision needs, then keeps to the share that was decided."""

    def __init__(
        self,
        counters: RemoteCounters,
        observer: Observer,
        in_flight: int,
        candidates: list[Candidate],
        keys: MetricKeys,
    ) -> None:
        """Begins with the metrics of earlier runs; ``candidates`` are the kinds to compare."""
        super().__init__(observer, in_flight)
        self._remote_counters, self._keys = counters, keys
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
        """Returns the kind that is measured; once decided, the chosen kind, within the share."""
        candidate, counters = self._profile.candidate, self._counters
        if candidate is None or counters is None:
            return candidate
        local, remote = self._observer.samples()
        within = counters.may_offload(local, remote) and self.has_capacity()
        return candidate if within else None

    def answered(self, seconds: float) -> None:
        self._slowest = max(self._slowest, seconds)
        super().answered(seconds)

    def look(self, most: int) -> None:
        """Goes on with the measurement when training has taken steps."""
        super().look(most)
        now, before = self._observer.observe(), self._before
        if before is None or self._profile.phase is ProfilePhase.DECIDED:
            self._before = now
            self._count_from(now)
            return
        # Nothing to measure: no step was taken, or remote workers are measured and none is there.
        if now.steps == before.steps or (not most and self._profile.phase is ProfilePhase.REMOTE):
            return
        slowest, self._slowest = self._slowest, 0.0
        phase = self._profile.phase, self._profile.candidate
        self._profile.observe(now.since(before, slowest))
        self._before = now
        if (self._profile.phase, self._profile.candidate) != phase:
            self.renew()
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
    if work.offload == "all":
        return Gate()
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
