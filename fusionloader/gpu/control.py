"""The local manager's side of the GPU worker: started, watched, directed, given up."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusionloader import _native
from fusionloader._native import GpuState
from fusionloader.gpu.memory_lender import MemoryLender, MemoryOptions
from fusionloader.gpu.rates import Rates
from fusionloader.scheduler.affinity import MiniBatchDone, ThresholdSearch
from fusionloader.scheduler.gate import TemporalGate, needed_beside_training
from fusionloader.scheduler.sharing import Mode, SharingChoice
from fusionloader.workers import messages
from fusionloader.workers.processes import Process
from fusionloader.workers.worker_set import Death, WorkerSet

log = logging.getLogger("fusionloader.gpu")

_MOST_RESTARTS = 3
_LEAVING_SECONDS = 0.001

StartGpuWorker = Callable[["Connections", int, int, int], Process]
"""Starts worker number ``n``, which sends messages to a descriptor and puts at most so many samples
in a launch."""


@dataclass(frozen=True, slots=True)
class Connections:
    """What the worker shares with the training process.

    Descriptors of control block and slots, and what opens the device buffers, by number.
    ``memory_fd`` is that of the ledger by which training lends memory, -1 where it lends none.
    """

    control_fd: int
    data_fd: int
    buffers: Sequence[Any] = ()
    memory_fd: int = -1


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What the manager needs to know.

    ``start`` starts it with ``most_samples`` in a launch; ``sharing`` is a mode or ``"auto"``.
    ``asked`` marks on the device where training stands when it asks for a batch, and returns a
    function that tells whether the device has come so far. ``buffers`` for batches on the device.
    ``memory`` where training may lend it memory.
    """

    start: StartGpuWorker
    most_samples: int
    sharing: str
    asked: Callable[[], Callable[[], bool]]
    buffers: int
    memory: MemoryOptions | None = None


class GpuControl:
    """One GPU worker, ``number`` in the queue, behind the CPU workers.

    Attributes:
        cpu_workers: how many there are now.
        restarts: how often it was started again.
        gone: why there is none any more, in words; ``None`` while there is one.
    """

    def __init__(
        self,
        queue: _native.ManagerQueue,
        connections: Connections,
        number: int,
        cpu_workers: int,
        in_flight: int,
        options: GpuOptions,
    ) -> None:
        self._queue = queue
        self._connections = connections
        self._number = number
        self.cpu_workers = cpu_workers
        self._options = options
        self._most_samples = options.most_samples
        self._why = ""
        self._state = GpuState.OFF
        self._threshold = 0
        self._samples = 0
        self._search = ThresholdSearch()
        self._gate = TemporalGate()
        self._choice: SharingChoice | None = None
        if options.sharing == "auto":
            self._choice = SharingChoice(both_fit=True, warm_up=in_flight)
        self._rates = Rates(queue, number)
        self._delivered: float | None = None
        self._needed = True
        self.restarts = 0
        self.gone: str | None = None
        self._memory = None if options.memory is None else MemoryLender(options.memory)
        self._set = WorkerSet(1, self._launch, first=number)

    def _launch(self, number: int, message_fd: int) -> Process:
        most, connections = self._most_samples, self._connections
        ledger_handle = None if self._memory is None else self._memory.invite()
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
        return [worker.process for worker in self._set.workers]

    def stats(self) -> dict[str, Any]:
        """Returns what ``FusionLoader.stats()`` says of it."""
        rates = self._choice.rates if self._choice is not None else {}
        return {
            "mode": self._mode.value,
            "profiling": self._choice is not None and self._choice.profiling,
            "rates": {mode.value: rate for mode, rate in rates.items()},
            "threshold": self._search.threshold,
            "samples": self._samples,
            "restarts": self.restarts,
            "gone": self.gone,
            "memory": {} if self._memory is None else self._memory.stats(),
        }

    # ---- directing it --------------------------------------------------------------------------

    @property
    def _mode(self) -> Mode:
        if self.gone is not None:
            return Mode.OFF
        return Mode(self._options.sharing) if self._choice is None else self._choice.mode

    @property
    def is_temporal(self) -> bool:
        """Whether it works only while training does not."""
        return self._mode is Mode.TEMPORAL

    @property
    def waits_for_device(self) -> bool:
        """Whether it may begin as soon as the device has come to where training asked."""
        return self._state is GpuState.CLOSED and self._mode is Mode.TEMPORAL

    def asked(self) -> None:
        """Training asks for a batch."""
        if self._mode is Mode.TEMPORAL and self._queue.gpu_is_ready:
            self._gate.asked(self._options.asked())
            self._update()

    def waits(self) -> None:
        """Training waits for a batch, and may lend memory until ``waited``."""
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
        if self._memory is not None:
            self._memory.take_back(next(iter(self.processes), None))

    def delivered(self, samples: int, backlog: int, ready: int) -> None:
        """Training has its batch of so many samples.

        ``backlog`` others are complete too; ``ready`` mini-batches can be delivered now.
        """
        now = time.monotonic()
        if self._choice is not None and self._delivered is not None and self._queue.gpu_is_ready:
            decisions = self._choice.decisions
            self._choice.iteration(now - self._delivered, samples, self.cpu_workers, backlog)
            if self._choice.decisions != decisions:
                log.info("%s", self._choice.describe())
        self._delivered = now
        self._needed = needed_beside_training(ready)
        self.busy()

    def busy(self) -> None:
        """Training goes to work on the device: in temporal sharing the worker leaves it."""
        self._gate.delivered()
        self._update()
        if self._mode is Mode.TEMPORAL:
            self._wait_until_outside()

    def paused(self) -> None:
        """An epoch is over: what lies between two of them is no training iteration."""
        self._delivered = None

    def finished(self, slot: int, tiny_batches: int) -> None:
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

    def look(self) -> None:
        """Reads its messages, notices its death, and lets it work when it may."""
        for message in self._set.receive():
            self._note(message)
        for death in self._set.deaths():
            for message in death.last_words:
                self._note(message)
            self._bury(death)
        self._update()

    def _update(self) -> None:
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
            if not all(process.is_alive() for process in self.processes):
                return

    # ---- losing it -----------------------------------------------------------------------------

    def _note(self, message: messages.Message) -> None:
        if isinstance(message, messages.WorkerFailed):
            self._why = message.failure.text

    def _bury(self, death: Death) -> None:
        built = self._queue.gpu_is_ready
        if self._memory is not None:
            self._memory.take_back(None)
        self._queue.forget_gpu()
        self._update()
        self._queue.take_back(death.number)
        why, self._why = self._why, ""
        # What cannot be built will not be the next time, unless it was for want of memory.
        hopeless = bool(why) and not built and "memory" not in why.lower()
        why = why or f"GPU worker (pid {death.pid}) {death.manner}"
        if hopeless or self.restarts >= _MOST_RESTARTS:
            self.gone = why
            self._set.drop(death)
            text = f"FusionLoader goes on without its GPU worker. {why}"
        else:
            self.restarts += 1
            self._most_samples = max(1, self._most_samples // 2)
            self._set.restart(death)
            text = (
                f"FusionLoader's GPU worker is started again ({self.restarts} of {_MOST_RESTARTS} "
                f"times) with at most {self._most_samples} samples in a launch; what it had begun "
                f"goes to CPU workers. {why}"
            )
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def rows_done(self, slot: int, tiny_batch_size: int, rows: Sequence[int]) -> list[int]:
        """Returns the rows of a mini-batch that it has written; ``rows`` in tiny-batch order."""
        return [
            row
            for tiny_batch in self._queue.done_by(slot, self._number)
            for row in rows[tiny_batch * tiny_batch_size : (tiny_batch + 1) * tiny_batch_size]
        ]

    def end(self) -> None:
        """Waits for it, which was told to stop, and kills it if it does not."""
        self._set.end()
        if self._memory is not None:
            self._memory.close()
