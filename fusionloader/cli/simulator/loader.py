"""The simulated loader: workers, training and the schedulers that the loader uses."""

from __future__ import annotations

import random

from fusionloader.cli.simulator.engine import Engine, SimulatedDevice, Tenant
from fusionloader.cli.simulator.machine import SimulatedMachine
from fusionloader.cli.simulator.setup import Outcome, SimulatedStep, SimulationSetup
from fusionloader.cli.simulator.times import Sample, draw_tiny_batches
from fusionloader.cli.simulator.two_ended import SimulatedClaim, TwoEndedQueue
from fusionloader.scheduler.gpu_sharing import Mode, SharingChoice
from fusionloader.scheduler.group_size import GroupSize
from fusionloader.scheduler.temporal_gate import TemporalGate, needed_beside_training
from fusionloader.scheduler.threshold import MiniBatchDone, Side, ThresholdSearch


class _MiniBatch:
    """The tiny-batches of a mini-batch, and the measurements that the schedulers use."""

    def __init__(self, tiny_batches: list[list[Sample]]) -> None:
        self.tiny_batches = tiny_batches
        self.samples = [len(tiny) for tiny in tiny_batches]
        self.seconds = {
            Side.CPU: [sum(sample.cpu_seconds for sample in tiny) for tiny in tiny_batches],
            Side.GPU: [sum(sample.gpu_seconds for sample in tiny) for tiny in tiny_batches],
        }
        self.begun: float | None = None
        self.threshold = 0
        self.last: dict[Side, float] = {}
        self.busy = dict.fromkeys(Side, 0.0)
        self.done = dict.fromkeys(Side, 0)

    def note(self, side: Side, samples: int, seconds: float, now: float) -> None:
        """A side has finished work that took it ``seconds``."""
        assert self.begun is not None
        self.last[side] = now - self.begun
        self.busy[side] += seconds
        self.done[side] += samples

    def rate(self, side: Side) -> float | None:
        """Samples per second of work."""
        return self.done[side] / self.busy[side] if self.busy[side] else None


class SimulatedLoader:
    """Runs one setup; the classes in scheduler/ take all decisions."""

    def __init__(self, setup: SimulationSetup) -> None:
        self._setup, self._variant = setup, setup.variant
        self._random = random.Random(setup.seed)
        gpu = setup.times.gpu
        beside = {Tenant.TRAINING: gpu.training_beside, Tenant.WORKER: gpu.beside_training}
        self._engine = Engine()
        self._machine = SimulatedMachine(self._engine, setup.machine)
        self._device = SimulatedDevice(self._engine, beside)
        self._queue = TwoEndedQueue()
        self._batches: list[_MiniBatch] = []
        self._search, self._groups, self._gate = ThresholdSearch(), GroupSize(), TemporalGate()
        self._choice = SharingChoice()
        self._workers = 0
        self._working: set[int] = set()
        self._gpu_working = False
        self._steps: list[SimulatedStep] = []
        self._steps_done = 0
        self._completed = 0  # samples
        self._delivered = 0  # mini-batches
        self._asking = self._pending = False
        self._asked = self._waited = 0.0  # when, and seconds until the last delivery
        self._makespan = 0.0

    def run(self) -> Outcome:
        """Trains to the end."""
        self._workers = self._setup.cpu_workers if self._variant.cpu else 0
        self._ask()
        self._publish()
        total = self._setup.iterations
        self._engine.run(done=lambda: len(self._steps) == total)
        if len(self._steps) < total:
            raise RuntimeError(f"the simulation stopped at step {len(self._steps)} of {total}")
        sides = (Side.CPU, Side.GPU)
        work = [list(zip(*(b.seconds[s] for s in sides), strict=True)) for b in self._batches]
        return Outcome(self._setup, self._steps, self._makespan, work)

    @property
    def _mode(self) -> Mode:
        return self._choice.mode if self._variant.mode is None else self._variant.mode

    @property
    def _threshold(self) -> int:
        """0 while the GPU worker is off: no tiny-batches are reserved for it."""
        on = self._variant.affinity and self._mode is not Mode.OFF
        return self._search.threshold if on else 0

    @property
    def _group(self) -> int:
        return self._groups.size if self._variant.group is None else self._variant.group

    # ---- mini-batches --------------------------------------------------------------------------

    def _publish(self) -> None:
        setup = self._setup
        until = min(self._delivered + setup.in_flight, setup.iterations)
        while len(self._batches) < until:
            tiny = draw_tiny_batches(
                setup.times, self._random, setup.batch_size, setup.tiny_batch_size,
                by_size=self._variant.affinity,
            )  # fmt: skip
            self._batches.append(_MiniBatch(tiny))
            self._queue.publish(len(tiny))
        self._wake()

    def _wake(self) -> None:
        for worker in range(1, self._workers + 1):
            if worker not in self._working:
                self._work_on_cpu(worker)
        self._work_on_gpu()

    def _claim(self, side: Side, count: int) -> SimulatedClaim | None:
        claim = self._queue.claim(side, self._threshold, count)
        if claim is not None and self._batches[claim.sequence].begun is None:
            batch = self._batches[claim.sequence]
            batch.begun, batch.threshold = self._engine.now, self._search.threshold
        return claim

    def _finish(self, side: Side, claim: SimulatedClaim, seconds: float) -> None:
        batch = self._batches[claim.sequence]
        self._queue.finish(claim)
        samples = sum(batch.samples[tiny_batch] for tiny_batch in claim.tiny_batches)
        self._completed += samples
        batch.note(side, samples, seconds, self._engine.now)
        if side is Side.GPU:
            self._groups.launched(samples, seconds)
        if not self._queue.done(claim.sequence):
            return
        self._makespan = self._engine.now
        done = MiniBatchDone(
            len(batch.samples),
            batch.threshold,
            self._workers,
            batch.last.get(Side.CPU),
            batch.last.get(Side.GPU),
            batch.rate(Side.CPU),
            batch.rate(Side.GPU),
        )
        if self._mode is not Mode.OFF:
            self._groups.finished(done.makespan, beside=self._mode is Mode.SPATIAL)
            self._search.finished(done)
        self._deliver()
        self._wake()  # the tiny-batches reserved for the GPU worker may have changed

    # ---- workers -------------------------------------------------------------------------------

    def _work_on_cpu(self, worker: int) -> None:
        self._working.discard(worker)
        claim = self._claim(Side.CPU, 1) if worker <= self._workers else None
        if claim is None:
            return
        self._working.add(worker)
        begun = self._engine.now

        def end() -> None:
            self._finish(Side.CPU, claim, self._engine.now - begun)
            self._work_on_cpu(worker)

        self._machine.make(self._batches[claim.sequence].tiny_batches[claim.first], end)

    def _needed(self) -> bool:
        ready = self._delivered
        while ready < len(self._batches) and self._queue.done(ready):
            ready += 1
        return not self._variant.cpu or needed_beside_training(ready - self._delivered)

    def _work_on_gpu(self) -> None:
        temporal = self._mode is Mode.TEMPORAL
        if self._gpu_working or self._mode is Mode.OFF:
            return
        if not (self._gate.open if temporal else self._needed()):
            return
        claim = self._claim(Side.GPU, self._group)
        if claim is None:
            return
        self._gpu_working = True
        begun, gpu = self._engine.now, self._setup.times.gpu
        on_host = gpu.launch + (0.0 if self._variant.ahead_of_time else gpu.build)
        per_tiny = self._batches[claim.sequence].seconds[Side.GPU]
        on_device = sum(per_tiny[tiny_batch] for tiny_batch in claim.tiny_batches)

        def end() -> None:
            self._gpu_working = False
            self._finish(Side.GPU, claim, self._engine.now - begun)
            self._start_step()
            self._wake()

        self._engine.after(on_host, lambda: self._device.start(Tenant.WORKER, on_device, end))

    # ---- training ------------------------------------------------------------------------------

    def _ask(self) -> None:
        """``__next__``: called as soon as the step before is enqueued; one step runs ahead."""
        begun = len(self._steps)
        self._asking, self._asked = True, self._engine.now
        self._gate.requested(lambda: self._steps_done >= begun)
        self._deliver()

    def _deliver(self) -> None:
        ready = self._delivered < len(self._batches) and self._queue.done(self._delivered)
        if not (self._asking and ready):
            return
        self._asking = False
        self._waited = self._engine.now - self._asked
        self._gate.delivered()
        self._delivered += 1
        self._queue.deliver_until(self._delivered)
        if self._setup.delivery_seconds:
            self._machine.cores.run(self._setup.delivery_seconds, self._hand_over)
        else:
            self._hand_over()
        self._publish()

    def _hand_over(self) -> None:
        self._pending = True
        self._start_step()

    def _start_step(self) -> None:
        waits_for_gpu_worker = self._mode is Mode.TEMPORAL and self._gpu_working
        if not self._pending or self._device.busy(Tenant.TRAINING) or waits_for_gpu_worker:
            return
        self._pending = False
        before = self._steps[-1].time if self._steps else 0.0
        size = self._setup.batch_size
        backlog = self._completed - self._delivered * size
        seconds = self._engine.now - before
        self._choice.iteration(seconds, size, self._workers, backlog, self._waited)
        self._note_step()
        cores = self._setup.training_cores
        if cores:
            self._machine.cores.run(self._setup.step_seconds, self._end_step, cores)
        else:
            self._device.start(Tenant.TRAINING, self._setup.step_seconds, self._end_step)
        if self._setup.runs_ahead:
            self._ask()

    def _end_step(self) -> None:
        self._steps_done += 1
        if not self._setup.runs_ahead and len(self._steps) < self._setup.iterations:
            self._ask()
        self._start_step()
        self._wake()

    def _note_step(self) -> None:
        self._workers = self._setup.workers_at.get(len(self._steps), self._workers)
        self._steps.append(
            SimulatedStep(self._engine.now, self._threshold, self._search.restarts, self._mode)
        )


def simulate(setup: SimulationSetup) -> Outcome:
    """Runs a setup."""
    return SimulatedLoader(setup).run()
