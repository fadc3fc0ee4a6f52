"""The Python worker: a CPU worker that runs the user's dataset and transforms."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import getitem
from typing import TYPE_CHECKING, Any

from fusionloader import _native
from fusionloader._native import End, TinyBatchState, WorkerActivity, WorkerEvent
from fusionloader.data.deferred import activity, counts
from fusionloader.data.deferred.rows import memory
from fusionloader.data.deferred.rows.sample_rows import SampleColumn, SampleRows
from fusionloader.data.deferred.sample_source import DeferringSource, without_deferral
from fusionloader.data.deferred.tensors.deferred_tensor import finishing
from fusionloader.data.sources import open_files
from fusionloader.options.loader_options import OnError
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.python import DatasetSource, Source, native_generators
from fusionloader.transforms.executors.row_writer import LayoutMismatch, WriteRows, make_writer
from fusionloader.transforms.plan.parts import WRITE, Spent
from fusionloader.workers import messages, sample_errors
from fusionloader.workers.claims import (
    SKIPPED,
    ClaimedRows,
    ClaimedSlot,
    find_columns,
    first_unpicklable,
    read_indices,
    read_keys,
)
from fusionloader.workers.preparation import ProcessState
from fusionloader.workers.sample_errors import BadSample, resolve

if TYPE_CHECKING:
    from fusionloader.workers.batch_worker import Collating
    from fusionloader.workers.python_assignments import PythonAssignments
    from fusionloader.workers.stream_worker import OwnPass

_CLAIM_SECONDS = 2e-3  # work in a claim, if samples are cheap
_MOST_TINY_BATCHES = 64
IDLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PythonWorkerConfig:
    """Configuration of a worker process, pickled if the process is spawned.

    Attributes:
        worker: the worker's number.
        workers: number of workers.
        control: descriptor of the control block.
        data: descriptor of the slots.
        message: descriptor of the pipe to the manager.
        source: source of samples.
        base_seed: seed of the iterator; the worker's seed is ``base_seed + worker``.
        worker_init_fn: option of the loader.
        on_error: option of the loader.
        whole: how whole mini-batches are made; ``None`` if samples are.
        event: descriptor of the event that wakes the global manager, -1 if workers are not shared.
        address: address of the global manager; empty if workers are not shared.
    """

    worker: int
    workers: int
    control: Descriptor
    data: Descriptor
    message: Descriptor
    source: Source
    base_seed: int
    worker_init_fn: Callable[[int], Any] | None
    on_error: OnError
    whole: Collating | OwnPass | None = None
    event: Descriptor = Descriptor(-1)
    address: str = ""


class PythonWorker:
    """Claims tiny-batches, loads their samples from the source, and writes them.

    Attributes:
        config: the worker's configuration.
        source: source of samples.
        queue: the queue that the worker claims from.
        sharing: work for other ranks; ``None`` if the worker serves its own alone.
        sample_rows: makes tensors in the rows of a batch, if anything does.
    """

    def __init__(
        self,
        config: PythonWorkerConfig,
        source: Source,
        queue: _native.WorkerQueue,
        pool: _native.WorkerQueue | None,
    ) -> None:
        self.config = config
        self.source = source
        self.queue = queue
        self.sharing: PythonAssignments | None = None
        self._pool = pool
        self._message_fd = config.message.fd
        self._layout: Layout | None = None
        self._layout_version = 0
        self._layout_expected = False
        self._writers: dict[tuple[int, int, int], WriteRows] = {}
        self._claimed_rows = ClaimedRows(queue)
        is_deferring = isinstance(source, DeferringSource)
        self.sample_rows = SampleRows(self._claimed_rows) if is_deferring else None
        self._columns: dict[int, list[SampleColumn | None]] = {}
        self._seconds_per_tiny_batch = _CLAIM_SECONDS
        self._with_skips: set[int] = set()  # tiny-batches of the claim with skipped samples
        self._reported = False

    @property
    def uses_generators(self) -> bool:
        """Whether samples depend on global generators, which other loaders of a pool advance."""
        return not all(self.source.seeding)

    def expect_layout(self) -> None:
        """Allows ``serve(once=True)`` to claim before the layout is known: it will be soon."""
        self._layout_expected = True

    def serve(self, once: bool = False) -> WorkerEvent:
        """Works until the manager stops the queue or the pool recalls the worker.

        With ``once`` it ends after one claim. Returns why it ended, as the native loop does.
        """
        queue = self.queue
        while not queue.stopping:
            if self.is_recalled:
                return self._end(WorkerEvent.RECALLED)
            seen = queue.work_word
            claim = None
            if not once or self.may_claim():
                claim = queue.claim(End.SMALL, 0, self.claim_size)
            if claim is None:
                queue.idle()
                if self.sharing is not None and not once and self.sharing.serve():
                    continue
                if self._pool is not None:
                    return self._end(WorkerEvent.IDLE)
                self.rest(seen)
                continue
            if self.sharing is not None and not once:
                self.sharing.report(WorkerActivity.HOME)
            self.serve_claim(claim)
            if once:
                return self._end(WorkerEvent.SERVED)
        return self._end(WorkerEvent.STOPPED)

    @property
    def is_recalled(self) -> bool:
        """Whether the pool sends the worker to another loader."""
        return self._pool is not None and self._pool.is_sent

    @property
    def claim_size(self) -> int:
        """Number of tiny-batches to claim at once."""
        count = int(_CLAIM_SECONDS / self._seconds_per_tiny_batch)
        return min(max(count, 1), _MOST_TINY_BATCHES)

    def serve_claim(self, claim: _native.Claim) -> None:
        """Makes the samples of a claim, and measures how long that takes."""
        start = time.perf_counter()
        self._serve_claim(claim)
        seconds = (time.perf_counter() - start) / claim.count
        self._seconds_per_tiny_batch += (seconds - self._seconds_per_tiny_batch) / 4

    def may_claim(self) -> bool:
        """Whether a worker that only helps may claim, because it will not wait for the layout."""
        return bool(self.queue.layout_version) or self._layout_expected

    def rest(self, seen: int) -> None:
        if self.sharing is not None:
            self.sharing.report(WorkerActivity.IDLE)
        self.queue.sleep(seen, IDLE_SECONDS)

    def close(self) -> None:
        if self.sharing is not None:
            self.sharing.leave(for_good=True)
            self.sharing = None  # it refers to this worker, whose queue is to be unmapped now

    def _end(self, why: WorkerEvent) -> WorkerEvent:
        if self.sharing is not None:
            self.sharing.leave(for_good=why is WorkerEvent.RECALLED)
        self.queue.idle()
        return why

    def _send(self, message: messages.Message) -> None:
        messages.send(self._message_fd, message)

    def _finish(self, claim: _native.Claim, tiny_batch: int, state: TinyBatchState) -> None:
        self.queue.finish(claim, tiny_batch, state)

    def _serve_claim(self, claim: _native.Claim) -> None:
        memory.use_sample_rows(self.sample_rows)  # other loaders of a pool have other rows
        try:
            self._begin_rows(claim)
            self._make(claim)
        finally:
            memory.use_sample_rows(None)

    def _make(self, claim: _native.Claim) -> None:
        self.queue.begin_span()
        before = ProcessState(generators=True) if self._may_come_back(claim) else None
        size, begin = claim.tiny_size, claim.first * claim.tiny_size
        end = min(begin + claim.count * size, claim.samples)
        self._claimed_rows.begin(claim, begin, end)
        self._begin_deferral()
        # No name for a sample: each one would count as a use of its row.
        samples: list[Any] = []
        tiny_batches = list(range(claim.first, claim.first + claim.count))  # not finished yet
        self._with_skips.clear()
        while len(samples) < end - begin:
            try:
                self._load(claim, begin, end, samples)
            except BadSample as bad:
                tiny_batch = (begin + len(samples)) // size
                message = messages.TinyBatchFailed(claim.sequence, tiny_batch, bad.failure)
                at = tiny_batch * size - begin
                samples[at:] = [SKIPPED] * min(size, end - begin - at)
                tiny_batches.remove(tiny_batch)
                self._send(message)
                self._settle_rows()
                self._finish(claim, tiny_batch, TinyBatchState.FAILED)
        self._count(self.source.take_spent())
        if self._with_skips:
            self._report_counts()  # before each finish(), since the epoch may end with it
            tiny_batches = self._finish_empty(claim, begin, samples, tiny_batches)
        if tiny_batches and self._agree_on_layout(claim, samples):
            start = time.perf_counter()
            results = self._write(claim, begin, samples, tiny_batches)
            self.queue.add_part_seconds([0.0] * WRITE + [time.perf_counter() - start])
            # Before finish(), so that the spans of a finished mini-batch are complete.
            self.queue.end_span(claim, claim.first, claim.count, rest_is_python=True)
            samples.clear()
            self._settle_rows()
            self._report_counts()
            for tiny_batch, result in results:
                self._finish(claim, tiny_batch, result)
            return
        samples.clear()
        self._settle_rows()
        self._report_counts()
        for tiny_batch in tiny_batches:
            self.queue.give_back(claim, tiny_batch)
        if before is not None:
            before.restore()  # the samples are made again, with the same draws

    def _begin_deferral(self) -> None:
        if isinstance(self.source, DeferringSource):
            self.source.begin_claim()
        else:
            activity.defer_nowhere()

    def _finish_empty(
        self, claim: _native.Claim, begin: int, samples: list[Any], tiny_batches: list[int]
    ) -> list[int]:
        """Finishes tiny-batches without a sample, which need no layout; returns the others."""
        self._settle_rows()
        left = []
        for tiny_batch in tiny_batches:
            at = tiny_batch * claim.tiny_size - begin
            if all(sample is SKIPPED for sample in samples[at : at + claim.tiny_size]):
                self.queue.finish(claim, tiny_batch, TinyBatchState.SKIPPED)
            else:
                left.append(tiny_batch)
        return left

    def _begin_rows(self, claim: _native.Claim) -> None:
        """Lets tensors be made in the rows of a claim, if their places are known."""
        if self.sample_rows is None:
            return
        known = self.queue.layout_version == self._layout_version and claim.payload is not None
        if self._layout is None or not known:
            self.sample_rows.begin(None, ())
            return
        rows = claim.payload_rows
        if rows not in self._columns:
            self._columns[rows] = find_columns(self._layout, rows)
        self.sample_rows.begin(ClaimedSlot(self.queue, claim), self._columns[rows])

    def _settle_rows(self) -> None:
        """Leaves user code what it still has of the samples, before one of them is finished."""
        if self.sample_rows is not None:
            self.sample_rows.settle()

    def _may_come_back(self, claim: _native.Claim) -> bool:
        """Whether the claim may be given back, with samples that depend on earlier draws."""
        if self._pool is None or not self.uses_generators:
            return False
        return self._layout is None or claim.payload is None

    def _report_counts(self) -> None:
        """Counts open files and deferred images in shared memory; sends what it has no words of.

        If the pipe is full, a later call sends that.
        """
        files = open_files.take_counts()
        if any(files):
            self.queue.add_files(*files)
        counted = counts.counts()
        if counted:
            self.queue.add_images(counted.take_words())
        if counted and messages.can_send(self._message_fd):
            messages.send(self._message_fd, messages.ImagesDeferred(counts.take()))

    # ---- loading samples -----------------------------------------------------------------------

    def _load(self, claim: _native.Claim, begin: int, end: int, samples: list[Any]) -> None:
        """Appends to ``samples``, of positions from ``begin`` on, those up to ``end - 1``.

        Raises:
            BadSample: the next one cannot be made.
        """
        source = without_deferral(self.source)
        generators = native_generators() if type(source) is DatasetSource else None
        inputs: list[Any] | None
        if generators is None:
            make, inputs = source.load, read_keys(claim, begin, end)
        else:
            make, inputs = partial(getitem, source.dataset), read_indices(claim)
            inputs = inputs and inputs[begin:end]
        if isinstance(self.source, DeferringSource) and self.source.tensors:
            make = finishing(make)
        made_by = self._interruptible(make)
        arguments = claim, begin, end - begin, inputs, made_by, samples, generators, source.seeding
        while begin + len(samples) < end:
            try:
                self.queue.make_samples(*arguments)
            except Exception as error:
                position, made = begin + len(samples), 0
                try:
                    samples.append(self._resolve(claim, position, error))
                    made = 1
                finally:
                    self.queue.end_samples(claim, position // claim.tiny_size, made)

    def _interruptible(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns what makes a sample, and may first raise what ends the claim."""
        return make

    def _count(self, spent: Spent) -> None:
        if spent.part_seconds:
            self.queue.add_part_seconds(spent.part_seconds)
        if spent.read_bytes or any(spent.cache):
            self.queue.add_reads(spent.read_bytes, spent.cache)

    def _resolve(self, claim: _native.Claim, position: int, error: Exception) -> Any:
        """Returns what takes a bad sample's place, as ``on_error`` says."""
        (key,) = read_keys(claim, position, position + 1)
        if isinstance(self.source, DeferringSource):
            made, error = self.source.load_at_once(key, error)
            for sample in made:
                return sample
        row = self._claimed_rows.row(position)
        failure = self._capture(error, self.source.name(key), row)
        found = resolve(
            self.config.on_error,
            failure,
            (key.seed, key.epoch, key.key, key.occurrence),
            self.source.count(),
            lambda index: self.source.load(key.replaced(index)),
        )
        self._send(messages.SampleSkipped(claim.sequence, row, found.index, failure))
        self._with_skips.add(position // claim.tiny_size)
        return SKIPPED if found.index is None else found.sample

    def _capture(
        self, error: Exception, sample: str, row: int, doing: str = ""
    ) -> messages.Failure:
        worker = f"in DataLoader worker process {self.config.worker}"
        where = f"{worker}, {doing}" if doing else worker
        return sample_errors.capture(error, where, sample, row)

    # ---- writing them --------------------------------------------------------------------------

    def _agree_on_layout(self, claim: _native.Claim, samples: list[Any]) -> bool:
        """Waits until the layout is known and the batch has rows.

        Returns ``False`` if the queue is stopped or the pool recalls the worker meanwhile.
        """
        queue = self.queue
        while True:
            seen = queue.work_word
            if queue.layout_version != self._layout_version:
                self._layout_version = queue.layout_version
                self._layout = pickle.loads(queue.layout())
                self._writers.clear()
                self._columns.clear()
            if self._layout is not None and claim.payload is not None:
                return True
            if queue.stopping:
                return False
            if self.is_recalled:
                return False  # training may be waiting for another loader of the pool
            if self._layout is None and not self._reported:
                first = next(sample for sample in samples if sample is not SKIPPED)
                self._send(messages.LayoutFound(Layout.of(first)))
                self._reported = True
                queue.wake_manager()
            queue.sleep(seen, IDLE_SECONDS)

    def _write(
        self, claim: _native.Claim, begin: int, samples: list[Any], tiny_batches: list[int]
    ) -> list[tuple[int, TinyBatchState]]:
        """Writes the samples to the batch; returns the state of each tiny-batch."""
        size, write = claim.tiny_size, self._writer(claim)
        is_one_block = len(tiny_batches) == claim.count and not self._claimed_rows.are_scattered
        if is_one_block and not (self._with_skips and any(sample is SKIPPED for sample in samples)):
            # If it raises, _write_apart finds the sample.
            with contextlib.suppress(Exception):
                write(begin, samples)
                return [(tiny_batch, self._written(tiny_batch)) for tiny_batch in tiny_batches]
        slices = [slice(each * size - begin, (each + 1) * size - begin) for each in tiny_batches]
        pairs = zip(tiny_batches, slices, strict=True)
        return [(number, self._write_apart(claim, number, samples[at])) for number, at in pairs]

    def _write_apart(
        self, claim: _native.Claim, tiny_batch: int, samples: list[Any]
    ) -> TinyBatchState:
        write = self._writer(claim)
        start = position = tiny_batch * claim.tiny_size
        try:
            for position, sample in enumerate(samples, start):
                if sample is not SKIPPED:
                    write(self._claimed_rows.row(position), [sample])
        except LayoutMismatch:
            return self._spill(claim, tiny_batch, samples)
        except Exception as error:
            return self._fail(claim, tiny_batch, position, error)
        return self._written(tiny_batch)

    def _written(self, tiny_batch: int) -> TinyBatchState:
        skipped = tiny_batch in self._with_skips
        return TinyBatchState.SKIPPED if skipped else TinyBatchState.COMPLETED

    def _spill(self, claim: _native.Claim, tiny_batch: int, samples: list[Any]) -> TinyBatchState:
        """Sends samples that do not fit the layout."""
        sent = [None if sample is SKIPPED else sample for sample in samples]
        try:
            pickled = pickle.dumps(sent)
        except Exception as error:
            position = tiny_batch * claim.tiny_size + first_unpicklable(sent)
            return self._fail(claim, tiny_batch, position, error)
        self.queue.wake_manager()  # so that it drains the pipe while a large message is written
        spilled = messages.SamplesSpilled(claim.sequence, tiny_batch, pickled)
        self._send(spilled)
        return TinyBatchState.SPILLED

    def _fail(
        self, claim: _native.Claim, tiny_batch: int, position: int, error: Exception
    ) -> TinyBatchState:
        """Reports the error of a sample that can be neither written nor sent."""
        (key,) = read_keys(claim, position, position + 1)
        failure = self._capture(error, self.source.name(key), self._claimed_rows.row(position))
        failed = messages.TinyBatchFailed(claim.sequence, tiny_batch, failure)
        self._send(failed)
        return TinyBatchState.FAILED

    def _writer(self, claim: _native.Claim) -> WriteRows:
        assert self._layout is not None and claim.payload is not None
        where = (self._layout_version, claim.payload, claim.payload_rows)
        writer = self._writers.get(where)
        if writer is None:
            writer = make_writer(
                self._layout, self.queue.rows(claim), claim.payload_rows, self.sample_rows
            )
            self._writers[where] = writer
        return writer
