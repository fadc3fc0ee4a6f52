"""The GPU worker: a process of its own that takes groups of tiny-batches from the large end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.executors.device.launch_memory import LaunchMemory, TorchPool
from fusionloader.executors.device.make_task import make_task
from fusionloader.executors.device.memory import Memory, of_buffer, of_tensor
from fusionloader.executors.device.task import EncodedSample, GpuTask
from fusionloader.executors.device_loss import is_device_lost
from fusionloader.executors.refusals import FileRefused
from fusionloader.executors.shortage import is_shortage
from fusionloader.gpu_memory import Borrower, LedgerHandle, MemorySharingError
from fusionloader.options import Prebuilt
from fusionloader.plan.stages import Plan
from fusionloader.scheduler.group_size import GroupSize
from fusionloader.shm.dataset_table import DatasetTable
from fusionloader.workers import failures, messages, processes

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

log = logging.getLogger("fusionloader.gpu")

_IDLE_SECONDS = 0.5
_ALIGN = 64

SharedBuffer = tuple[Callable[..., "torch.Tensor"], tuple[object, ...]]
"""Opens memory of the training process on the device: a function and its arguments."""


@dataclass(frozen=True, slots=True)
class BorrowedMemory:
    """How memory is borrowed from training.

    ``ledger_fd`` is open. ``pool`` makes what a launch allocates from. ``trims``: unused memory
    goes to the device whenever there is nothing to do.
    """

    ledger_fd: int
    pool: Callable[[], TorchPool]
    trims: bool


@dataclass(frozen=True, slots=True)
class GpuWorkerConfig:
    """What the worker needs to know; the descriptors are open under these numbers.

    ``device_id`` is CUDA's, ``None`` for DALI's CPU backend. ``buffers`` on the device are opened
    by calling each one's function; without them rows go to the batch slot. ``most_samples`` in a
    launch; ``fixed_group`` where the user chose them. ``memory`` where training may lend some.
    """

    worker: int
    parent: int
    control_fd: int
    data_fd: int
    table_fd: int
    table_bytes: int
    message_fd: int
    plan: Plan
    row_bytes: int
    device_id: int | None
    prebuilt: Prebuilt
    tiny_batch_size: int
    most_samples: int
    fixed_group: bool
    buffers: Sequence[SharedBuffer]
    threads: int
    hw_decoder_load: float
    memory: BorrowedMemory | None = None


def main(config: GpuWorkerConfig) -> None:
    """Serves until the manager says stop or the training process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training process's to handle
    processes.exit_with_parent(config.parent)  # also while it builds, or has training's memory
    queue = _native.WorkerQueue(config.control_fd, config.data_fd, config.worker, gpu=True)
    queue.announce(os.getpid())
    try:
        worker = _GpuWorkerLoop(config, queue)
        queue.gpu_ready()
        queue.wake_manager()
        worker.serve()
    except Exception as error:
        failure = failures.capture(error, "in the GPU worker")
        short, lost, why = is_shortage(error), is_device_lost(error), failures.summary(error)
        messages.send(config.message_fd, messages.WorkerFailed(failure, short, lost, why))
        sys.exit(1)


class _GpuWorkerLoop:
    def __init__(self, config: GpuWorkerConfig, queue: _native.WorkerQueue) -> None:
        if config.device_id is not None:
            import torch

            # Before anything else: a call of CUDA's without it would make a context on device 0.
            torch.cuda.set_device(config.device_id)
        self._config = config
        self._queue = queue
        self._memory = None
        if config.memory is not None:
            self._memory = _launch_memory(config.memory, queue.wake_manager)
        self._table = DatasetTable.of_descriptor(config.table_fd, config.table_bytes)
        self._task: GpuTask = make_task(
            config.plan,
            config.device_id,
            config.prebuilt,
            config.most_samples,
            config.threads,
            config.hw_decoder_load,
        )
        self._buffers = [of_tensor(opened(*arguments)) for opened, arguments in config.buffers]
        most = max(1, config.most_samples // config.tiny_batch_size)
        self._group = GroupSize(most)
        if config.fixed_group:
            self._group.size = most
        self._refused: set[int] = set()  # items whose files only CPU workers can do
        self._sequence = -1
        self._sequence_since = 0.0
        self._views: dict[tuple[int, int], tuple[Memory, NDArray[np.int64]]] = {}

    def serve(self) -> None:
        queue = self._queue
        while not queue.stopping and os.getppid() == self._config.parent:
            seen = queue.work_word
            if self._memory is not None:
                self._memory.look()
            claim = queue.claim_next(self._group.size)
            if claim is None:
                if self._memory is not None:
                    self._memory.rest()
                queue.idle()
                queue.sleep(seen, _IDLE_SECONDS)
                continue
            start = time.perf_counter()
            self._serve_claim(claim)
            queue.leave()
            self._learn(claim, time.perf_counter() - start)

    def _serve_claim(self, claim: _native.Claim) -> None:
        """Does the tiny-batches of a claim in one launch; what it cannot do goes to CPU workers."""
        begin = claim.first * claim.tiny_size
        stop = min((claim.first + claim.count) * claim.tiny_size, claim.samples)
        self._queue.begin_sample(claim, claim.first, begin)
        targets = self._rows(claim)[1]
        samples: list[EncodedSample] = []
        bad: set[int] = set()
        for position in range(begin, stop):
            entry = claim.entry(position)
            encoded = None if entry.item in self._refused else self._read(entry.item)
            if encoded is None:
                bad.add(position // claim.tiny_size)
                continue
            draws = (claim.seed, claim.epoch, entry.key, entry.occurrence, entry.group)
            samples.append(EncodedSample(encoded, *draws, self._place(claim, entry.row), position))
            targets[entry.row] = self._table.targets[entry.item]
        for sample, why in zip(samples, self._run(samples), strict=True):
            if why is not None:
                log.debug("a CPU worker does sample %d: %s", sample.key, why)
                bad.add(sample.position // claim.tiny_size)
                if isinstance(why, FileRefused):
                    self._refused.add(claim.entry(sample.position).item)
        self._queue.end_samples(claim, claim.first, stop - begin)
        for tiny_batch in range(claim.first, claim.first + claim.count):
            if tiny_batch in bad:
                self._queue.give_back(claim, tiny_batch)
            else:
                self._queue.finish(claim, tiny_batch, TinyBatchState.COMPLETED)

    def _run(self, samples: list[EncodedSample]) -> list[str | None]:
        if self._memory is None:
            return self._task.run(samples)
        return self._memory.run(self._task.run, samples)

    def _learn(self, claim: _native.Claim, seconds: float) -> None:
        if self._config.fixed_group:
            return
        if claim.sequence != self._sequence:
            now = time.perf_counter()
            if 0 <= self._sequence < claim.sequence:
                passed = now - self._sequence_since
                self._group.finished(passed / (claim.sequence - self._sequence))
            self._sequence, self._sequence_since = claim.sequence, now
        samples = min(claim.count * claim.tiny_size, claim.samples)
        self._group.launched(samples, seconds)

    def _read(self, item: int) -> bytes | None:
        if not 0 <= item < len(self._table):
            return None
        try:
            with open(self._table.path(item), "rb") as file:
                encoded = file.read()
        except OSError:
            return None
        self._table.sizes[item] = min(len(encoded), 0xFFFFFFFF)
        return encoded

    def _place(self, claim: _native.Claim, row: int) -> Memory:
        memory = self._buffers[claim.gpu_rows - 1] if self._buffers else self._rows(claim)[0]
        return memory.part(row * self._config.row_bytes, self._config.row_bytes)

    def _rows(self, claim: _native.Claim) -> tuple[Memory, NDArray[np.int64]]:
        """Returns the mini-batch's images and targets, as ``PlanWorker`` lays them out."""
        assert claim.payload is not None
        where = (claim.payload, claim.payload_rows)
        if where not in self._views:
            slot = self._queue.rows(claim)
            images = claim.payload_rows * self._config.row_bytes
            at_targets = -(-images // _ALIGN) * _ALIGN
            targets = np.frombuffer(slot, np.int64, claim.payload_rows, at_targets)
            self._views[where] = (of_buffer(slot[:images]), targets)
        return self._views[where]


def _launch_memory(
    memory: BorrowedMemory, wake_training: Callable[[], None]
) -> LaunchMemory | None:
    """Returns what launches borrow through, ``None`` without a driver for it."""
    try:
        borrower = Borrower(LedgerHandle(memory.ledger_fd))
    except MemorySharingError as error:
        log.warning("no memory can be borrowed: %s", error)
        return None
    return LaunchMemory(borrower, memory.pool(), wake_training, memory.trims)
