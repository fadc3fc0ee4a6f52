"""The Python worker that makes whole mini-batches: each claim is one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.data.deferred.collating import default_collate, joining
from fusionloader.data.deferred.rows import memory
from fusionloader.data.deferred.sample_source import DeferringSource
from fusionloader.data.deferred.tensors.deferred_tensor import finished_first, make_all_plain
from fusionloader.system.freed_memory import keep_freed_memory
from fusionloader.transforms.executors.batch_transport import Sender, Sends, StagedSender
from fusionloader.transforms.executors.collate import is_of_collate
from fusionloader.transforms.executors.fetchers import find_list_maker
from fusionloader.transforms.executors.python import SampleKey, Source, seed_generators
from fusionloader.workers import messages
from fusionloader.workers.claims import SKIPPED, read_indices
from fusionloader.workers.python_worker import IDLE_SECONDS, PythonWorker, PythonWorkerConfig
from fusionloader.workers.sample_errors import BadSample

_KEPT_BYTES = 128 << 20
_LONG = 1 << 15  # bytes of a long message; half the capacity of a pipe
_UNSENT = "which cannot send its batch"
_OF_BATCH = 0xFFFFFFFF  # occurrence for draws of a whole batch; no sample comes up as often


class Collating(NamedTuple):
    """How whole mini-batches are made.

    Attributes:
        collate_fn: gets the list of samples of a mini-batch, or one sample without
            ``auto_collation``.
        auto_collation: whether a mini-batch is a list of samples (``batch_size`` is not ``None``).
        most: number of sent batches per worker whose memory may still be in use.
        sends: where the worker sends its batches; ``None`` until it is started, and if batches lie
            in the slots of their mini-batches.
    """

    collate_fn: Callable[[Any], Any]
    auto_collation: bool
    most: int
    sends: Sends | None = None


class BatchWorker(PythonWorker):
    """Claims mini-batches, makes their samples, and collates them."""

    def __init__(
        self,
        config: PythonWorkerConfig,
        source: Source,
        queue: _native.WorkerQueue,
        pool: _native.WorkerQueue | None,
        collating: Collating,
    ) -> None:
        super().__init__(config, source, queue, pool)
        keep_freed_memory(_KEPT_BYTES)  # the samples of a batch are freed together
        self.sample_rows = None  # its tensors are made in the rows of whole batches
        sends = collating.sends
        self._sender = StagedSender(self._slot_of_batch) if sends is None else Sender(sends)
        self._claim: _native.Claim | None = None
        self._collate, self._auto_collation = collating.collate_fn, collating.auto_collation
        makes_lists = self._auto_collation and find_list_maker(source.dataset) is not None
        self._fetch = source.dataset.__getitems__ if makes_lists else None
        is_default = is_of_collate(self._collate, "default_collate")
        if self._auto_collation and not is_default and sends is not None and pool is None:
            self._collate = joining(self._collate, self._sender.storage)
        self._rows: memory.BatchRows | None = None
        # What user code keeps in a pool's worker outlives the loader and its slots.
        if isinstance(source, DeferringSource) and pool is None:
            self._rows = memory.BatchRows(cast(Any, self._sender))
        if self._rows is not None and is_default:
            self._collate = default_collate(self._rows)
        elif isinstance(source, DeferringSource) and source.tensors:
            self._collate = finished_first(self._collate)

    def may_claim(self) -> bool:
        return True

    def _serve_claim(self, claim: _native.Claim) -> None:
        self.queue.begin_span()
        self._claim = claim
        memory.use(self._rows)  # for each claim, since other loaders of a pool have other rows
        self._begin_deferral()  # before the first sample, since collate_fn may open images
        try:
            with self._sender.collating():
                state = self._made(claim)
        except BadSample as bad:
            failed = messages.TinyBatchFailed(claim.sequence, claim.first, bad.failure)
            self._send(failed)
            state = TinyBatchState.FAILED
        finally:
            memory.use(None)
        self._report_counts()  # before finish(), since the epoch may end with this mini-batch
        self.queue.end_span(claim, claim.first, 1, rest_is_python=True)
        self._finish(claim, claim.first, state)

    def _made(self, claim: _native.Claim) -> TinyBatchState:
        """Makes and sends a mini-batch; returns its state.

        Raises:
            BadSample: a sample, or the batch, cannot be made.
        """
        batch = self._batch(claim)
        return TinyBatchState.SKIPPED if batch is SKIPPED else self._sent(claim, batch)

    def _sent(self, claim: _native.Claim, batch: Any) -> TinyBatchState:
        """Gives a batch to the training process; returns the state of its mini-batch."""
        try:
            pickled = self._sender.pack(batch).pickled_apart()
        except Exception as error:
            last = max(claim.samples - 1, 0)
            raise BadSample(self._capture(error, "", last, _UNSENT)) from error
        self.queue.end_samples(claim, claim.first, 0)
        if len(pickled) >= _LONG:
            self.queue.wake_manager()  # so that it drains the pipe while the message is written
        self._send(messages.SamplesSpilled(claim.sequence, claim.first, pickled))
        return TinyBatchState.SPILLED

    def _slot_of_batch(self, nbytes: int) -> memoryview:
        """Returns the slot of the claimed mini-batch, once it has one of at least ``nbytes``.

        Raises:
            RuntimeError: the queue is stopped.
        """
        claim, queue, is_wanted = self._claim, self.queue, False
        assert claim is not None
        while not queue.stopping:
            seen = queue.work_word
            if claim.payload is not None and (rows := queue.rows(claim)).nbytes >= nbytes:
                return rows
            if not is_wanted:
                self._send(messages.SlotWanted(claim.sequence, nbytes))
                queue.wake_manager()
                is_wanted = True
            queue.sleep(seen, IDLE_SECONDS)
        raise RuntimeError("the queue was stopped before the batch had a slot")

    def _batch(self, claim: _native.Claim) -> Any:
        """Returns a collated mini-batch; ``SKIPPED`` if all samples are left out."""
        samples = self._samples(claim)
        if self._fetch is None:
            samples = [each for each in samples if each is not SKIPPED]
            if not samples and claim.samples:
                return SKIPPED
        last = max(claim.samples - 1, 0)
        self.queue.begin_sample(claim, claim.first, last)
        try:
            batch = self._collate(samples if self._auto_collation else samples[0])
            if self._rows is not None:
                self._rows.settle()
            if isinstance(self.source, DeferringSource):
                make_all_plain(batch)
        except Exception as error:
            raise BadSample(self._capture(error, "", last)) from error
        return batch

    def _samples(self, claim: _native.Claim) -> Any:
        """Returns a list of samples, or what ``__getitems__`` returns, which may be joined."""
        if self._fetch is None:
            samples: list[Any] = []
            self._load(claim, 0, claim.samples, samples)
            self._count(self.source.take_spent())
            self._seed(claim)
            return samples
        indices = read_indices(claim)
        if indices is None:
            indices = claim.sample_keys(0, claim.samples)[0]
        self._seed(claim)
        self.queue.begin_sample(claim, claim.first, 0)
        samples = self._fetch_samples(claim, self._fetch, indices)
        self.queue.end_samples(claim, claim.first, claim.samples)
        self._count(self.source.take_spent())
        return samples

    def _fetch_samples(
        self, claim: _native.Claim, fetch: Callable[[Any], Any], indices: Any
    ) -> Any:
        def again() -> Any:
            self._seed(claim)
            return fetch(indices)

        try:
            if isinstance(self.source, DeferringSource):
                self.source.begin_sample()
            return fetch(indices)
        except Exception as error:
            found = error
            if isinstance(self.source, DeferringSource):
                made, found = self.source.make_at_once(again, error)
                for samples in made:
                    return samples
            raise BadSample(self._capture(found, "", 0)) from found

    def _seed(self, claim: _native.Claim) -> None:
        """Seeds the generators for draws that belong to the mini-batch as a whole."""
        if self._auto_collation:
            key = SampleKey(None, claim.seed, claim.epoch, claim.number, _OF_BATCH)
            seed_generators(key, self.source.seeding)
