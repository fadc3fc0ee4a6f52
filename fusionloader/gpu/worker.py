"""The GPU worker: claims groups of tiny-batches from the large end of the queue.

``main`` runs it in a process of its own, ``gpu.worker_thread`` in a thread of the training process.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.cache.range_reading import FileRange, read_range
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.scheduler.group_size import GroupSize
from fusionloader.system.gpu_memory import Borrower, LedgerHandle, MemorySharingError
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.transforms.executors.decoders.decoder_head import DecoderFailed
from fusionloader.transforms.executors.device.launch_memory import (
    SAMPLE_BYTES,
    LaunchMemory,
    TorchPool,
)
from fusionloader.transforms.executors.device.make_task import HeadOptions, make_task
from fusionloader.transforms.executors.device.memory import Memory, of_buffer, of_tensor
from fusionloader.transforms.executors.device.task import BegunTask, EncodedSample
from fusionloader.transforms.executors.device_errors import (
    DecodeFailed,
    FileRefused,
    is_device_lost,
    is_shortage,
)
from fusionloader.transforms.plan.stages import Plan
from fusionloader.workers import messages, sample_errors

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

log = logging.getLogger("fusionloader.gpu")

_IDLE_SECONDS = 0.5
_ALIGN = 64

SharedBuffer = tuple[Callable[..., "torch.Tensor"], tuple[object, ...]]
"""A function, and its arguments, that open device memory of the training process."""


@dataclass(frozen=True, slots=True)
class BorrowedMemory:
    """How memory is borrowed from training.

    Attributes:
        ledger_fd: open descriptor of the ledger.
        pool: makes the pool from which a launch allocates.
        trims: whether unused memory is freed whenever there is nothing to do.
    """

    ledger_fd: int
    pool: Callable[[], TorchPool]
    trims: bool


@dataclass(frozen=True, slots=True)
class GpuWorkerConfig:
    """Configuration of the worker; the descriptors are open in its process under these numbers.

    Attributes:
        worker: the worker's number.
        parent: process id of the training process.
        control_fd: descriptor of the control block.
        data_fd: descriptor of the slots.
        table_fd: descriptor of the dataset's table.
        table_bytes: size of the table.
        message_fd: descriptor of the pipe to the manager.
        plan: decoding and transforms.
        row_bytes: bytes of an image that the worker makes.
        slot_row_bytes: bytes of an image in a batch slot, which may be 8-bit levels.
        device_id: CUDA's device number; ``None`` for the decoder's CPU backend.
        tiny_batch_size: samples in a tiny-batch.
        most_samples: samples in a launch, at most.
        fixed_group: whether the user chose ``most_samples``, so that every group is that large.
        buffers: openers of the batch buffers on the device; empty if rows go to the batch slot.
        head: options of the decoder.
        memory: how memory is borrowed; ``None`` if training lends none.
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
    slot_row_bytes: int
    device_id: int | None
    tiny_batch_size: int
    most_samples: int
    fixed_group: bool
    buffers: Sequence[SharedBuffer]
    head: HeadOptions
    memory: BorrowedMemory | None = None

    def descriptors(self) -> dict[str, int]:
        """Returns the descriptors that have to be open in the process, by field."""
        names = ("control_fd", "data_fd", "table_fd", "message_fd")
        return {name: getattr(self, name) for name in names}


def main_with_script(config: GpuWorkerConfig, descriptors: dict[str, Descriptor]) -> None:
    """Serves in a multiprocessing process, in which classes of the training script are defined."""
    fds: dict[str, Any] = {name: descriptor.fd for name, descriptor in descriptors.items()}
    main(replace(config, **fds))


def main(config: GpuWorkerConfig) -> None:
    """Serves until the manager stops the queue or the training process has ended."""
    queue = _native.WorkerQueue(config.control_fd, config.data_fd, config.worker, gpu=True)
    queue.announce(os.getpid())
    try:
        loop = GpuWorkerLoop(config, queue)
        loop.announce()
        loop.serve(lambda: os.getppid() == config.parent)
    except Exception as error:
        messages.send(config.message_fd, make_failure(error))
        sys.exit(1)


def make_failure(error: BaseException) -> messages.WorkerFailed:
    """Returns the worker's last message; to be called while the error is being handled."""
    if isinstance(error, DecoderFailed):
        why = str(error)  # one line that says where it failed, and what to do
        return messages.WorkerFailed(messages.Failure(None, why, -1), is_final=True, summary=why)
    why, is_lost = sample_errors.summary(error), is_device_lost(error)
    if is_lost:  # final, because training uses the same device
        why += ". Its device failed: a new process may be able to use it again"
    failure = sample_errors.capture(error, "in the GPU worker")
    return messages.WorkerFailed(failure, is_shortage(error), is_lost, why)


@dataclass(slots=True, eq=False)
class _BegunClaim:
    """A claim whose samples are being decoded.

    Attributes:
        claim: the claim.
        samples: the encoded samples.
        targets: rows and the targets to be written there.
        bad: numbers of the tiny-batches that go to CPU workers.
        task: the decoding that was begun; ``None`` if it begins with memory that can be borrowed.
        start: time at which the claim was begun, in seconds.
    """

    claim: _native.Claim
    samples: list[EncodedSample]
    targets: list[tuple[int, int]]
    bad: set[int]
    task: BegunTask | None
    start: float


class GpuWorkerLoop:
    """Claims groups and finishes them in order.

    Beside training up to ``head.groups`` at a time: one is decoded while the one before it is
    augmented.
    """

    def __init__(
        self,
        config: GpuWorkerConfig,
        queue: _native.WorkerQueue,
        inside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Builds the task.

        ``inside`` returns a context that is entered for all access to shared state: claims, states
        and rows. An exception that it raises ends the loop.
        """
        self._inside = inside
        if config.device_id is not None:
            import torch

            # First of all, since other calls would make a CUDA context on device 0.
            torch.cuda.set_device(config.device_id)
        self._config = config
        self._queue = queue
        self._memory = None
        if config.memory is not None:
            self._memory = _launch_memory(config.memory, queue.wake_manager)
        self._table = DatasetTable.of_descriptor(config.table_fd, config.table_bytes)
        self._task = make_task(config.plan, config.device_id, config.most_samples, config.head)
        self._buffers = [of_tensor(opened(*arguments)) for opened, arguments in config.buffers]
        most = max(1, config.most_samples // config.tiny_batch_size)
        self._group = GroupSize(most)
        if config.fixed_group:
            self._group.size = most
        self._reported_group = 0
        self._begun: deque[_BegunClaim] = deque()
        self._finished_at = 0.0
        self._refused: Counter[str] = Counter()  # refused samples by reason, not reported yet
        self._refused_files: dict[int, str] = {}  # reasons of files refused for good, by item
        self._failed_files: set[int] = set()  # items whose decoding has failed once
        self._sequence = -1
        self._sequence_since = 0.0
        self._views: dict[tuple[int, int], tuple[Memory, NDArray[np.int64]]] = {}

    def announce(self) -> None:
        """Reports to the manager that the worker is ready."""
        self._report_group()
        with self._inside():
            self._queue.gpu_ready()
            self._queue.wake_manager()

    def serve(self, goes_on: Callable[[], bool]) -> None:
        """Works until the manager stops the queue, or ``goes_on()`` is false."""
        queue = self._queue
        while not queue.stopping and goes_on():
            seen = queue.work_word
            if self._memory is not None:
                self._memory.look()
            claim = self._claim()
            if claim is not None:
                self._begun.append(self._begin(claim))
            elif self._begun:
                self._finish(self._begun.popleft())
            else:
                if self._memory is not None:
                    self._memory.rest()
                with self._inside():
                    queue.idle()
                queue.sleep(seen, _IDLE_SECONDS)
        self.close()

    def close(self) -> None:
        self._task.close()

    @property
    def _overlaps(self) -> bool:
        """Whether a group may be begun before the last one is finished.

        Only beside training, and not while launches need memory that training lends.
        """
        short = self._memory is not None and self._memory.short
        return self._queue.gpu_beside and not short

    def _claim(self) -> _native.Claim | None:
        if len(self._begun) >= (self._config.head.groups if self._overlaps else 1):
            return None
        with self._inside():
            claim = self._queue.claim_next(self._group.size)
            if claim is not None and not self._begun:
                self._begin_work(claim)
        return claim

    def _begin_work(self, claim: _native.Claim) -> None:
        self._queue.begin_span()
        self._queue.begin_sample(claim, claim.first, _position_range(claim)[0])

    def _begin(self, claim: _native.Claim) -> _BegunClaim:
        """Reads the files of a claim, and begins to decode them."""
        start = time.perf_counter()
        begin, stop = _position_range(claim)
        samples: list[EncodedSample] = []
        targets: list[tuple[int, int]] = []
        bad: set[int] = set()
        for position in range(begin, stop):
            entry = claim.entry(position)
            why = self._refused_files.get(entry.item)
            encoded = self._read(entry.item) if why is None else None
            if encoded is None:
                self._refuse(why or "the file cannot be read", claim, position, bad)
                continue
            draws = (claim.seed, claim.epoch, entry.key, entry.occurrence, entry.group)
            samples.append(EncodedSample(encoded, *draws, self._place(claim, entry.row), position))
            targets.append((entry.row, int(self._table.targets[entry.item])))
        task = self._begin_task(samples)
        return _BegunClaim(claim, samples, targets, bad, task, start)

    def _begin_task(self, samples: list[EncodedSample]) -> BegunTask | None:
        """Begins to decode, unless a launch may need memory that only training can lend."""
        if self._memory is not None:
            if not self._overlaps:
                return None
            self._memory.used = True
        try:
            return self._task.begin(samples)
        except Exception as error:
            if self._memory is None or not is_shortage(error):
                raise
        return None

    def _finish(self, begun: _BegunClaim) -> None:
        """Finishes the tiny-batches of a claim; those with refused samples go to CPU workers."""
        claim, bad = begun.claim, begun.bad
        for sample, why in zip(begun.samples, self._run(begun), strict=True):
            if why is not None:
                self._refuse(why, claim, sample.position, bad)
                if isinstance(why, FileRefused):
                    self._refuse_file(why, claim.entry(sample.position).item)
        if self._refused and messages.can_send(self._config.message_fd):
            messages.send(self._config.message_fd, messages.SamplesRefused(dict(self._refused)))
            self._refused.clear()
        with self._inside():
            self._report(begun)
        now = time.perf_counter()
        self._learn(claim, now - max(begun.start, self._finished_at))
        self._finished_at = now

    def _report(self, begun: _BegunClaim) -> None:
        """Writes the targets, and finishes the tiny-batches or gives them back."""
        claim = begun.claim
        targets = self._rows(claim)[1]
        for row, target in begun.targets:
            targets[row] = target
        begin, stop = _position_range(claim)
        self._queue.end_samples(claim, claim.first, stop - begin)
        self._queue.end_span(claim, claim.first, claim.count)
        for tiny_batch in range(claim.first, claim.first + claim.count):
            if tiny_batch in begun.bad:
                self._queue.give_back(claim, tiny_batch)
            else:
                self._queue.finish(claim, tiny_batch, TinyBatchState.COMPLETED)
        if self._begun:  # the time from here on counts as work on the next claim
            self._begin_work(self._begun[0].claim)
        else:
            self._queue.leave()

    def _refuse(self, why: str, claim: _native.Claim, position: int, bad: set[int]) -> None:
        log.debug("a CPU worker does the sample at %d: %s", position, why)
        self._refused[str(why)] += 1
        bad.add(position // claim.tiny_size)

    def _refuse_file(self, why: FileRefused, item: int) -> None:
        """Leaves a file to CPU workers for good.

        A file that could not be decoded is tried twice, because memory may have been short.
        """
        if isinstance(why, DecodeFailed) and (item not in self._failed_files or self._is_short()):
            self._failed_files.add(item)
        else:
            self._refused_files[item] = why

    def _is_short(self) -> bool:
        if self._config.device_id is None:
            return False
        import torch

        free, _ = torch.cuda.mem_get_info(self._config.device_id)
        return free < self._config.most_samples * SAMPLE_BYTES

    def _run(self, begun: _BegunClaim) -> list[str | None]:
        if begun.task is not None:
            try:
                return self._task.finish(begun.task, self._inside)
            except Exception as error:
                if self._memory is None or not is_shortage(error):
                    raise
        assert self._memory is not None
        for other in self._begun:  # the decoder finishes groups in order, and memory is short
            if other.task is not None:
                self._task.give_up(other.task)
                other.task = None
        return self._memory.run(self._task.run, begun.samples)

    def _learn(self, claim: _native.Claim, seconds: float) -> None:
        if self._config.fixed_group:
            return
        if claim.sequence != self._sequence:
            now = time.perf_counter()
            if 0 <= self._sequence < claim.sequence:
                passed = now - self._sequence_since
                makespan = passed / (claim.sequence - self._sequence)
                self._group.finished(makespan, self._queue.gpu_beside)
                self._report_group()
            self._sequence, self._sequence_since = claim.sequence, now
        samples = min(claim.count * claim.tiny_size, claim.samples)
        self._group.launched(samples, seconds)

    def _report_group(self) -> None:
        size, fd = self._group.size, self._config.message_fd
        if size != self._reported_group and messages.can_send(fd):
            messages.send(fd, messages.GroupChosen(size * self._config.tiny_batch_size))
            self._reported_group = size

    def _read(self, item: int) -> bytes | None:
        if not 0 <= item < len(self._table):
            return None
        try:
            encoded = read_range(FileRange.of(self._table.range(item)))
        except OSError:
            return None
        if self._table.ranges is None:
            self._table.sizes[item] = min(len(encoded), 0xFFFFFFFF)
        return encoded

    def _place(self, claim: _native.Claim, row: int) -> Memory:
        memory = self._buffers[claim.gpu_rows - 1] if self._buffers else self._rows(claim)[0]
        return memory.part(row * self._config.row_bytes, self._config.row_bytes)

    def _rows(self, claim: _native.Claim) -> tuple[Memory, NDArray[np.int64]]:
        """Returns the images and targets in the slot, laid out as by the native ``PlanWorker``."""
        assert claim.payload is not None
        where = (claim.payload, claim.payload_rows)
        if where not in self._views:
            slot = self._queue.rows(claim)
            images = claim.payload_rows * self._config.slot_row_bytes
            at_targets = -(-images // _ALIGN) * _ALIGN
            targets = np.frombuffer(slot, np.int64, claim.payload_rows, at_targets)
            self._views[where] = (of_buffer(slot[:images]), targets)
        return self._views[where]


def _position_range(claim: _native.Claim) -> tuple[int, int]:
    """Returns the positions at which a claim's samples begin and end (exclusive)."""
    stop = (claim.first + claim.count) * claim.tiny_size
    return claim.first * claim.tiny_size, min(stop, claim.samples)


def _launch_memory(
    memory: BorrowedMemory, wake_training: Callable[[], None]
) -> LaunchMemory | None:
    """Returns the memory of launches; ``None`` if the driver cannot borrow."""
    try:
        borrower = Borrower(LedgerHandle(memory.ledger_fd))
    except MemorySharingError as error:
        log.warning("no memory can be borrowed: %s", error)
        return None
    return LaunchMemory(borrower, memory.pool(), wake_training, memory.trims)
