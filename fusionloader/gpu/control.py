"""The local manager's side of the GPU worker: starts, watches, directs and restarts it."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from fusionloader import _native
from fusionloader._native import GpuState
from fusionloader.engine.manager.participant import Handle, Hub, Participant, ParticipantKind
from fusionloader.engine.manager.publications import Publications
from fusionloader.gpu.memory_lender import MemoryLender
from fusionloader.gpu.start import Connections, GpuOptions
from fusionloader.observe.statistics.loader_statistics import Statistics
from fusionloader.observe.trace.recorder import Recorder
from fusionloader.observe.trace.timeline import THRESHOLD
from fusionloader.scheduler.gpu_sharing import Mode, SharingChoice
from fusionloader.scheduler.memory_lending import MemoryPeaks
from fusionloader.scheduler.temporal_gate import TemporalGate, needed_beside_training
from fusionloader.scheduler.threshold import MiniBatchDone, ThresholdSearch
from fusionloader.system.current_device import device_for_threads
from fusionloader.system.processes import Process
from fusionloader.workers import messages
from fusionloader.workers.worker_set import Death, WorkerSet

log = logging.getLogger("fusionloader.gpu")

_MOST_RESTARTS = 3
_MOST_REASONS = 20  # distinct reasons for refused samples; further ones are counted together
_OTHERS = "other reasons"
_LEAVING_SECONDS = 0.001  # between checks whether the worker has finished its launch
_DEVICE_SECONDS = 0.0005  # between checks whether the device has passed training's mark
HUNG_SECONDS = 60.0  # time in a launch without a finished sample after which the worker is killed
_UNWATCHED_SECONDS = 1.0  # a longer time between two looks does not count
_IDLE_SECONDS = 0.01  # longest sleep of an idle window's thread


class GpuControl(Participant):
    """Starts, directs and restarts one GPU worker.

    Attributes:
        cpu_workers: current number of CPU workers.
        given_up: why the worker is not started again; ``None`` while it is.
    """

    kind: ParticipantKind = "gpu"
    places = cores = 1

    def __init__(self, options: GpuOptions) -> None:
        self._options = options
        self.device_buffers, self.in_thread = options.buffers, options.in_thread
        self.cpu_workers = 0
        self._most_samples = options.most_samples
        self._failure: messages.WorkerFailed | None = None
        self._refused: dict[str, int] = {}
        self._told = GpuState.OFF, 0, False
        self._samples = self._group = 0
        self._search = ThresholdSearch()
        self._gate = TemporalGate()
        self._choice: SharingChoice | None = None
        if options.sharing == "auto":
            self._choice = SharingChoice()
            if options.in_thread:
                self._choice.forbid(Mode.TEMPORAL)
        self._peaks = MemoryPeaks()
        self._compared = False  # whether memory peaks were compared since the last delivery
        self._delivered: float | None = None  # time of the last delivery
        self._waiting_since: float | None = None
        self._waited = 0.0  # waiting time since the last delivery, in seconds
        self._needed = True
        self._progress = (-1, 0.0)  # samples done by the worker, and when that last changed
        self._looked = 0.0  # time of the last look at its progress
        self._traced_mode: str | None = None
        self._launched: float | None = None  # start time, until the worker is ready
        self._killed_for_memory: int | None = None  # process id
        self.restarts = 0
        self.given_up: str | None = None
        self._memory = None if options.memory is None else MemoryLender(options.memory)
        self._set: WorkerSet | None = None

    def start(self, hub: Hub) -> None:
        """Starts a worker process first, because it takes longest to build.

        A worker thread is started after the CPU workers: no process is forked while it is built.
        """
        self._queue, self.cpu_workers = hub.queue, hub.workers
        self._connections = Connections(hub.control_fd, hub.data_fd, hub.buffers)
        self._rates = _Rates(hub.queue, self.first)
        if not self.in_thread:
            self._set = WorkerSet(1, self._launch, first=self.first)

    def workers_started(self, workers: WorkerSet) -> None:
        if self._set is None:
            self._set = WorkerSet(1, self._launch, first=self.first)

    def resized(self, workers: int) -> None:
        self.cpu_workers = workers

    def publishing(self, slot: int) -> None:
        """Makes the worker write into the slot if it has no buffers on the device."""
        if not self.device_buffers:
            self._queue.set_gpu_rows(slot, 1)

    def _launch(self, number: int, message_fd: int) -> Process:
        most, connections = self._most_samples, self._connections
        log.info("the GPU worker starts, which takes seconds; CPU workers do without it meanwhile")
        self._launched = time.monotonic()
        ledger_handle = None if self._memory is None else self._memory.open_ledger()
        if ledger_handle is None:
            return self._options.start(connections, number, message_fd, most)
        connections = replace(connections, memory_fd=ledger_handle.fd)
        try:
            return self._options.start(connections, number, message_fd, most)
        finally:
            ledger_handle.close()  # the worker has a copy

    @property
    def processes(self) -> list[Process]:
        return [] if self._set is None else [worker.process for worker in self._set.workers]

    def stats(self) -> dict[str, object]:
        """Returns the GPU worker's entry of ``FusionLoader.stats()``."""
        rates = self._choice.rates if self._choice is not None else {}
        return {
            "mode": self._mode.value,
            "profiling": self._choice is not None and self._choice.profiling,
            "rates": {mode.value: rate for mode, rate in rates.items()},
            "threshold": self._search.threshold,
            "group": self._group,
            "samples": self._samples,
            "where": "thread" if self._options.in_thread else "process",
            "decoder": self._options.decoder,
            "refused": dict(self._refused),
            "restarts": self.restarts,
            "gone": self.given_up,
            "memory": {} if self._memory is None else self._memory.stats(),
        }

    def record(self, statistics: Statistics) -> None:
        statistics.gpu_worker = self.stats()

    def trace_began(self) -> None:
        self._traced_mode = None

    def trace(self, recorder: Recorder, thoroughly: bool) -> None:
        """Records changes of threshold and mode."""
        threshold, mode = self._search.threshold, self._mode.value
        if recorder.count(THRESHOLD, threshold):
            recorder.instant("threshold", f"threshold {threshold}")
        if self._traced_mode not in (None, mode):
            recorder.instant("gpu_mode", f"GPU worker: {self._traced_mode} -> {mode}")
        self._traced_mode = mode

    # ---- directing it --------------------------------------------------------------------------

    @property
    def _mode(self) -> Mode:
        if self.given_up is not None:
            return Mode.OFF
        return Mode(self._options.sharing) if self._choice is None else self._choice.mode

    @property
    def is_temporal(self) -> bool:
        """Whether the worker runs only while training waits."""
        return self._mode is Mode.TEMPORAL

    @property
    def longest_sleep(self) -> float:
        waits_for_device = self._told[0] is GpuState.CLOSED and self.is_temporal
        return _DEVICE_SECONDS if waits_for_device else super().longest_sleep

    def asked(self) -> None:
        if self._mode is Mode.TEMPORAL and self._queue.gpu_is_ready:
            self._gate.requested(self._options.mark_stream())
            self._update()

    def waiting(self) -> None:
        """Lets the worker run, and lends it memory until ``waited`` is called."""
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        self._needed = True
        self._update()
        if (
            self._memory is not None
            and self._mode is Mode.TEMPORAL
            and self._told[0] is GpuState.OPEN
        ):
            self._memory.lend()
            if self._memory.short and self._choice is not None:
                self._choice.forbid(Mode.SPATIAL)

    def waited(self) -> None:
        """Takes all lent memory back before it returns."""
        if self._waiting_since is not None:
            self._waited += time.monotonic() - self._waiting_since
            self._waiting_since = None
            self._compare_peaks()  # while the worker still holds its memory
        worker = next(iter(self.processes), None)
        if self._memory is not None and self._memory.take_back(worker) and worker is not None:
            self._killed_for_memory = worker.pid

    def delivered(self, samples: int, backlog: int, ready: int) -> None:
        now = time.monotonic()
        if self._choice is not None and self._delivered is not None and self._queue.gpu_is_ready:
            self._compare_peaks()
            decisions = self._choice.decisions
            seconds, waited = now - self._delivered, self._waited
            self._choice.iteration(seconds, samples, self.cpu_workers, backlog, waited)
            if self._choice.decisions != decisions:
                log.info("%s", self._choice.describe())
        self._delivered, self._waited, self._compared = now, 0.0, False
        self._needed = needed_beside_training(ready)
        self.busy()

    def busy(self) -> None:
        """Makes the worker leave the device in temporal sharing: training uses it again."""
        self._gate.delivered()
        self._update()
        if self._mode is Mode.TEMPORAL:
            self._wait_until_outside()

    def _compare_peaks(self) -> None:
        """Excludes spatial sharing, before it is profiled, if memory would not suffice for it.

        Done once per delivery, since it takes up to a millisecond of training's time.
        """
        allocator, choice = self._options.allocator, self._choice
        if self._compared or allocator is None or choice is None or not choice.profiling:
            return
        self._compared = True
        if not choice.allows(Mode.SPATIAL) or allocator.capturing():
            return
        free, total = allocator.device_memory()
        self._peaks.observe(free, total, allocator.reserved())
        training = allocator.peak()
        if not self._peaks.fit(training, total):
            choice.forbid(Mode.SPATIAL)
            log.info(
                "memory of training (%d MB at its peak) and GPU worker (%d MB, with all else) does "
                "not fit on the device together: they do not share it at the same time",
                *(nbytes >> 20 for nbytes in (training, self._peaks.others)),
            )

    def epoch_ended(self) -> None:
        """Ends an epoch or pause: the time until the next batch is no training iteration."""
        self._delivered, self._waited = None, 0.0

    def taken(self, slot: int, tiny_batches: int) -> None:
        """Updates the threshold search from a mini-batch that is done."""
        shares = self._queue.shares(slot)
        begun, cpu, gpu = shares.begun_seconds, shares.cpu, shares.gpu
        self._samples += gpu.samples
        if self._told[0] is GpuState.OFF:
            return
        cpu_rate, gpu_rate = self._rates.since_last()
        self._search.finished(
            MiniBatchDone(
                tiny_batches,
                shares.threshold,
                self.cpu_workers,
                cpu.finished_seconds - begun if cpu.tiny_batches else None,
                gpu.finished_seconds - begun if gpu.tiny_batches else None,
                cpu_rate,
                gpu_rate,
            )
        )
        self._update()

    def look(self, handle: Handle, publications: Publications[Any]) -> None:
        """Reads messages, restarts the worker if it has ended, and updates its state.

        No tiny-batch is lost: CPU workers make those that a dead worker held.
        """
        workers = self._workers
        workers.handle(self._note)
        for death in workers.deaths():
            death.receiver.handle(self._note)
            self._replace(death)
        self._kill_if_hung()
        self._update()

    @property
    def _workers(self) -> WorkerSet:
        assert self._set is not None
        return self._set

    def _kill_if_hung(self) -> None:
        """Kills a worker that is in a launch for too long; its tiny-batches are done again.

        While training does not wait, as in a validation, nothing says when a launch has begun.
        """
        now, done = time.monotonic(), self._queue.worker(self.first).samples
        is_watched = now - self._looked <= _UNWATCHED_SECONDS
        self._looked = now
        if not is_watched or not self._queue.gpu_is_inside or done != self._progress[0]:
            self._progress = (done, now)
        elif now - self._progress[1] > HUNG_SECONDS:
            log.warning("the GPU worker has done nothing for %.0f s, and is ended", HUNG_SECONDS)
            for process in self.processes:
                process.kill()
            self._progress = (-1, now)

    def idle_window(self) -> AbstractContextManager[object]:
        """Returns a block within which the worker runs, with training's free memory.

        Without temporal sharing the block has no effect.
        """
        return self._idle_window() if self.is_temporal else nullcontext()

    @contextmanager
    def _idle_window(self) -> Iterator[None]:
        """Lets the worker run within the block, in which training does not use the device.

        A thread does the work of a waiting ``next()``, which must not be called within the block.
        """
        over, set_device = threading.Event(), device_for_threads()

        def serve() -> None:
            set_device()
            while not over.is_set():
                seen = self._queue.done_word()
                self.waiting()
                self._queue.sleep(seen, _IDLE_SECONDS)

        thread = threading.Thread(target=serve, name="fusionloader-idle-window", daemon=True)
        self.asked()  # in this thread, because the mark goes to its current stream
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.waited()
            self.busy()
            self.epoch_ended()

    def _update(self) -> None:
        if self._launched is not None and self._queue.gpu_is_ready:
            log.info("the GPU worker is ready after %.1f s", time.monotonic() - self._launched)
            self._launched = None
        state = GpuState.OFF
        if self._queue.gpu_is_ready and self._mode is not Mode.OFF:
            open_now = self._gate.open if self._mode is Mode.TEMPORAL else self._needed
            state = GpuState.OPEN if open_now else GpuState.CLOSED
        threshold = self._search.threshold if state is not GpuState.OFF else 0
        told = state, threshold, self._mode is Mode.SPATIAL
        if told != self._told:
            self._told = told
            self._queue.set_gpu(*told)

    def _wait_until_outside(self) -> None:
        """Waits until all launches are over, so that training has the device for itself."""
        while self._queue.gpu_is_inside:
            seen = self._queue.done_word()
            if self._queue.gpu_is_inside:  # again, since it may have left before done_word()
                self._queue.sleep(seen, _LEAVING_SECONDS)
            self._kill_if_hung()
            if not all(process.is_alive() for process in self.processes):
                return

    # ---- losing it -----------------------------------------------------------------------------

    def _note(self, message: messages.Message) -> None:
        if isinstance(message, messages.WorkerFailed):
            self._failure = message
        elif isinstance(message, messages.GroupChosen):
            self._group = message.samples
        elif isinstance(message, messages.SamplesRefused):
            for reason, count in message.counts.items():
                known = reason in self._refused or len(self._refused) < _MOST_REASONS
                reason = reason if known else _OTHERS
                self._refused[reason] = self._refused.get(reason, 0) + count

    def _replace(self, death: Death) -> None:
        built = self._queue.gpu_is_ready
        if self._memory is not None:
            self._memory.take_back(None)
        self._queue.forget_gpu()
        self._update()
        self._queue.take_back(death.number)
        failure, self._failure = self._failure, None
        if death.pid is not None and death.pid == self._killed_for_memory:  # not the worker's error
            self._killed_for_memory = None
            self._workers.restart(death)
            return
        # A worker that could not be built will fail again, unless memory was short.
        hopeless = failure is not None and (
            failure.is_final or (not built and not failure.short_of_memory)
        )
        name = "GPU worker" if death.pid is None else f"GPU worker (pid {death.pid})"
        why = f"{name} {death.manner}"
        if failure is not None:
            why = f"{name}: {failure.summary}"
            log.info("%s", failure.failure.text)
        if hopeless or self.restarts >= _MOST_RESTARTS:
            self.given_up = why
            self._workers.drop(death)
            text = f"FusionLoader goes on without its GPU worker, with CPU workers alone. {why}"
        else:
            self.restarts += 1
            self._most_samples = max(1, self._most_samples // 2)
            self._workers.restart(death)
            text = (
                f"FusionLoader's GPU worker is started again ({self.restarts} of {_MOST_RESTARTS} "
                f"times) with at most {self._most_samples} samples in a launch; what it had begun "
                f"goes to CPU workers. {why}"
            )
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def end(self) -> None:
        """Waits until the worker has ended, and kills it if it does not stop."""
        if self._set is not None:
            if not self._queue.gpu_is_ready:  # while it starts it does not check for a stop
                for process in self.processes:
                    process.terminate()
            self._set.end()
        if self._memory is not None:
            self._memory.close()


class _Rates:
    """Samples per second of work, of one CPU worker and of the GPU worker."""

    def __init__(self, queue: _native.ManagerQueue, gpu_worker: int) -> None:
        """``gpu_worker`` is the GPU worker's number, above those of all CPU workers."""
        self._queue = queue
        self._gpu_worker = gpu_worker
        self._before = ((0, 0.0), (0, 0.0))

    def since_last(self) -> tuple[float | None, float | None]:
        """Returns the CPU and GPU rates since the last call, ``None`` for a side without work."""
        workers = self._queue.workers(0, self._gpu_worker + 1)
        counted = [(worker.samples, worker.busy_seconds) for worker in workers]
        now = (_sum(counted[:-1]), _sum(counted[-1:]))
        rates = tuple(
            (samples - samples_before) / (busy - busy_before)
            if samples > samples_before and busy > busy_before
            else None
            for (samples, busy), (samples_before, busy_before) in zip(
                now, self._before, strict=True
            )
        )
        self._before = now
        return rates[0], rates[1]


def _sum(counted: list[tuple[int, float]]) -> tuple[int, float]:
    return sum(samples for samples, _ in counted), sum(busy for _, busy in counted)
