"""The local manager's side of the GPU worker: starts, watches, directs and restarts it."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from fusionloader._native import GpuState
from fusionloader.engine.manager.participant import (
    Handle,
    Hopeless,
    Hub,
    LostTinyBatch,
    Participant,
    ParticipantKind,
)
from fusionloader.gpu.memory_lender import MemoryLender
from fusionloader.gpu.rates import Rates
from fusionloader.gpu.start import Connections, GpuOptions
from fusionloader.observe.statistics.counters import Statistics
from fusionloader.observe.trace.recorder import Recorder
from fusionloader.observe.trace.timeline import THRESHOLD
from fusionloader.scheduler.affinity import MiniBatchDone, ThresholdSearch
from fusionloader.scheduler.gpu_sharing import Mode, SharingChoice
from fusionloader.scheduler.memory_lending import MemoryPeaks
from fusionloader.scheduler.temporal_gate import TemporalGate, needed_beside_training
from fusionloader.system.processes import Process
from fusionloader.workers import messages
from fusionloader.workers.worker_set import Death, WorkerSet

log = logging.getLogger("fusionloader.gpu")

_MOST_RESTARTS = 3
_MOST_REASONS = 20  # for which samples are refused; others are counted together
_OTHERS = "other reasons"
_LEAVING_SECONDS = 0.001
# While the worker may begin as soon as the device has come to where training asked.
_DEVICE_SECONDS = 0.0005
# In a launch, without a sample done: by then the device or its driver does not answer any more.
HUNG_SECONDS = 60.0
# Between two looks of an idle window's thread at most.
_IDLE_SECONDS = 0.01


class GpuControl(Participant):
    """One GPU worker.

    Attributes:
        cpu_workers: how many there are now.
        given_up: why it is not started again, in words; ``None`` while there is one.
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
        self._state = GpuState.OFF
        self._threshold = 0
        self._samples = 0
        self._search = ThresholdSearch()
        self._gate = TemporalGate()
        self._choice: SharingChoice | None = None
        if options.sharing == "auto":
            self._choice = SharingChoice()
            if options.in_thread:
                self._choice.forbid(Mode.TEMPORAL)
        self._peaks = MemoryPeaks()
        self._compared = False  # since the last delivery
        self._delivered: float | None = None
        self._waiting_since: float | None = None
        self._waited = 0.0  # seconds since the last delivery
        self._needed = True
        self._progress = (-1, 0.0)
        self._traced_mode: str | None = None
        self._launched: float | None = None  # when, until it is ready
        self._killed_for_memory: int | None = None  # pid
        self.restarts = 0
        self.given_up: str | None = None
        self._memory = None if options.memory is None else MemoryLender(options.memory)
        self._set: WorkerSet | None = None

    def start(self, hub: Hub) -> None:
        """Starts a process, which has the most to build of all; a thread comes behind the others.

        Processes are not forked while a thread is built.
        """
        self._queue, self.cpu_workers = hub.queue, hub.workers
        self._connections = Connections(hub.control_fd, hub.data_fd, hub.buffers)
        self._rates = Rates(hub.queue, self.first)
        if not self.in_thread:
            self._set = WorkerSet(1, self._launch, first=self.first)

    def workers_started(self, workers: WorkerSet) -> None:
        """Starts the worker if it is a thread."""
        if self._set is None:
            self._set = WorkerSet(1, self._launch, first=self.first)

    def resized(self, workers: int) -> None:
        """There are ``workers`` CPU workers from now on."""
        self.cpu_workers = workers

    def publishing(self, slot: int) -> None:
        """Has its worker write into the slot where it has no buffers on the device."""
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
            ledger_handle.close()  # the worker has its own

    @property
    def processes(self) -> list[Process]:
        """The worker's process, if there is one."""
        return [] if self._set is None else [worker.process for worker in self._set.workers]

    def stats(self) -> dict[str, object]:
        """Returns what ``FusionLoader.stats()`` says of it."""
        rates = self._choice.rates if self._choice is not None else {}
        return {
            "mode": self._mode.value,
            "profiling": self._choice is not None and self._choice.profiling,
            "rates": {mode.value: rate for mode, rate in rates.items()},
            "threshold": self._search.threshold,
            "samples": self._samples,
            "where": "thread" if self._options.in_thread else "process",
            "decoder": self._options.decoder,
            "refused": dict(self._refused),
            "restarts": self.restarts,
            "gone": self.given_up,
            "memory": {} if self._memory is None else self._memory.stats(),
        }

    def record(self, statistics: Statistics) -> None:
        """Writes what it has counted into the loader's statistics."""
        statistics.gpu_worker = self.stats()

    def trace_began(self) -> None:
        """A trace has begun."""
        self._traced_mode = None

    def trace(self, recorder: Recorder, thoroughly: bool) -> None:
        """Notes changes of threshold and mode."""
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
        """Whether it works only while training does not."""
        return self._mode is Mode.TEMPORAL

    @property
    def longest_sleep(self) -> float:
        """Seconds until the device may have come to where training asked."""
        waits_for_device = self._state is GpuState.CLOSED and self.is_temporal
        return _DEVICE_SECONDS if waits_for_device else super().longest_sleep

    def asked(self) -> None:
        """Training asks for a batch."""
        if self._mode is Mode.TEMPORAL and self._queue.gpu_is_ready:
            self._gate.requested(self._options.asked())
            self._update()

    def waiting(self) -> None:
        """Training waits for a batch, and may lend memory until ``waited``."""
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        self._needed = True
        self._update()
        if (
            self._memory is not None
            and self._mode is Mode.TEMPORAL
            and self._state is GpuState.OPEN
        ):
            self._memory.lend()
            if self._memory.short and self._choice is not None:
                self._choice.forbid(Mode.SPATIAL)

    def waited(self) -> None:
        """Training waits no more: all its memory is its own when this returns."""
        if self._waiting_since is not None:
            self._waited += time.monotonic() - self._waiting_since
            self._waiting_since = None
            self._compare_peaks()  # as long as the worker has what it works with
        worker = next(iter(self.processes), None)
        if self._memory is not None and self._memory.take_back(worker) and worker is not None:
            self._killed_for_memory = worker.pid

    def delivered(self, samples: int, backlog: int, ready: int) -> None:
        """Training has a batch of ``samples``.

        ``backlog`` others are complete too; ``ready`` mini-batches can be delivered now.
        """
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
        """Training uses the device again: in temporal sharing the worker stops to."""
        self._gate.delivered()
        self._update()
        if self._mode is Mode.TEMPORAL:
            self._wait_until_outside()

    def _compare_peaks(self) -> None:
        """Excludes spatial sharing, before it is profiled, if it would run out of memory.

        Looks once for each delivery, since a look takes up to a millisecond of training's time.
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
        """An epoch is over, or a pause: the time until the next batch is no training iteration."""
        self._delivered, self._waited = None, 0.0

    def taken(self, slot: int, tiny_batches: int) -> None:
        """Learns from a mini-batch whose last tiny-batch is complete."""
        shares = self._queue.shares(slot)
        begun, cpu, gpu = shares.begun_seconds, shares.cpu, shares.gpu
        self._samples += gpu.samples
        if self._state is GpuState.OFF:
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

    def look(self, handle: Handle, hopeless: Hopeless) -> Iterable[LostTinyBatch]:
        """Reads its messages, restarts it if it has ended, and updates what it may do.

        No sample is given up for its death: CPU workers make what it held.
        """
        workers = self._workers
        workers.handle(self._note)
        for death in workers.deaths():
            death.receiver.handle(self._note)
            self._replace(death)
        self._kill_if_hung()
        self._update()
        return ()

    @property
    def _workers(self) -> WorkerSet:
        assert self._set is not None
        return self._set

    def _kill_if_hung(self) -> None:
        """Ends a worker that is in a launch for too long; what it had is done again then."""
        now, done = time.monotonic(), self._queue.worker(self.first).samples
        if not self._queue.gpu_is_inside or done != self._progress[0]:
            self._progress = (done, now)
        elif now - self._progress[1] > HUNG_SECONDS:
            log.warning("the GPU worker has done nothing for %.0f s, and is ended", HUNG_SECONDS)
            for process in self.processes:
                process.kill()
            self._progress = (-1, now)

    def idle_window(self) -> AbstractContextManager[object]:
        """Returns a block within which it works, with training's free memory.

        It does nothing except in temporal sharing.
        """
        return self._idle_window() if self.is_temporal else nullcontext()

    @contextmanager
    def _idle_window(self) -> Iterator[None]:
        """Lets it work within the block.

        Training leaves the device alone within it. A thread does what a waiting ``next()`` would,
        which must not be called within the block.
        """
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                seen = self._queue.done_word()
                self.waiting()
                self._queue.sleep(seen, _IDLE_SECONDS)

        thread = threading.Thread(target=serve, name="fusionloader-idle-window", daemon=True)
        self.asked()  # in this thread: on its current stream
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
        if (state, threshold) != (self._state, self._threshold):
            self._state, self._threshold = state, threshold
            self._queue.set_gpu(state, threshold)

    def _wait_until_outside(self) -> None:
        """Waits for the launch under way: training must not find the device at work."""
        while self._queue.gpu_is_inside:
            seen = self._queue.done_word()
            if self._queue.gpu_is_inside:
                self._queue.sleep(seen, _LEAVING_SECONDS)
            self._kill_if_hung()
            if not all(process.is_alive() for process in self.processes):
                return

    # ---- losing it -----------------------------------------------------------------------------

    def _note(self, message: messages.Message) -> None:
        if isinstance(message, messages.WorkerFailed):
            self._failure = message
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
        if death.pid is not None and death.pid == self._killed_for_memory:  # nothing is wrong
            self._killed_for_memory = None
            self._workers.restart(death)
            return
        # What cannot be built will not be the next time, unless memory was short.
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
        """Waits for its end, and kills it if it does not stop.

        Not while it starts, when it does not look whether it is to stop.
        """
        if self._set is not None:
            if not self._queue.gpu_is_ready:
                for process in self.processes:
                    process.terminate()
            self._set.end()
        if self._memory is not None:
            self._memory.close()
