"""The iterator over mini-batches of workers that iterate over the dataset themselves.

As with torch, worker ``i % n`` makes mini-batch ``i``, and workers whose datasets have ended are
skipped. Only one worker may claim a mini-batch; if it dies, its replacement makes it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import count, repeat

from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _share_dist_seed

from fusionloader.data.epochs.epoch_state import EpochState, Returned
from fusionloader.data.epochs.sampling import Draws, SampledBatch
from fusionloader.engine.iterators.backend import NO_ITEM, WorkerBackend
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.engine.iterators.slot_iterator import SlotIterator
from fusionloader.engine.manager.in_flight import Job
from fusionloader.engine.manager.publications import MiniBatch
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.options.aliases import AnyLoader, Batch
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.fetchers import asked_samples, made_samples
from fusionloader.workers.stream_worker import Task


class _Endless(Draws[SampledBatch]):
    """Endless mini-batches without indices, for an iterable dataset."""

    def __init__(self, options: LoaderOptions) -> None:
        nothing = [None] * (options.batch_size or 1)
        super().__init__(map(SampledBatch, count(), repeat(nothing), repeat([]), repeat([])))

    def now(self) -> Iterator[SampledBatch]:
        # Not through ``__next__``: unlike a generator, this iterator goes on after an exception.
        return self._batches


class StreamIterator(SlotIterator):
    """Serves an ``IterableDataset``, and datasets with ``state_dict()``."""

    def __init__(
        self, loader: AnyLoader, options: LoaderOptions, state: LoaderState, backend: WorkerBackend
    ) -> None:
        super().__init__(loader, options, state, backend)
        if self._shared_seed is not None:  # of a DataPipe: torch draws one more, without using it
            _share_dist_seed(loader.generator, self._pg)  # type: ignore[no-untyped-call]

    @property
    def _passes(self) -> WorkerPasses:
        passes = self._backend.passes
        assert passes is not None
        return passes

    @property
    def _is_iterable(self) -> bool:
        return self._options.dataset_kind == _DatasetKind.Iterable

    def _start_epoch(self) -> EpochState:
        epoch_state = super()._start_epoch()
        self._passes.begin(epoch_state)
        # Without a dataset state, resuming means to make and drop the delivered batches again.
        self._repeats = self._is_iterable and not any(epoch_state.workers)
        if self._is_iterable and not self._repeats:
            epoch_state.delivered += len(epoch_state.ahead)  # no worker makes these again
            epoch_state.ahead = set()
        self._positions = 0 if self._repeats else epoch_state.delivered
        return epoch_state

    def _draws(self) -> Draws[SampledBatch]:
        return _Endless(self._options) if self._is_iterable else super()._draws()

    def _reset(self, loader: AnyLoader, first_iter: bool = False) -> None:
        if self._is_iterable:  # resets torch's check of the length, and the shared seed
            _BaseDataLoaderIter._reset(self, loader, first_iter)
        super()._reset(loader, first_iter)

    def _notice_changes(self) -> None:
        if not self._is_iterable:  # an epoch's number changes nothing of a stream
            super()._notice_changes()

    def _publish(self) -> bool:
        if self._passes.next_worker() is None:
            self._drawn.clear()
            return bool(self._in_flight.wanted)
        return super()._publish()

    def _submit(self, sampled: SampledBatch) -> None:
        worker = self._passes.next_worker()
        if worker is None:  # all have ended in the meantime
            return
        indices = sampled.indices
        index = getattr(indices, "given", indices) if self._options.auto_collation else indices[0]
        rows = [0] if indices else []
        batch = MiniBatch(
            sampled.number,
            indices,
            items=[NO_ITEM] * len(rows),
            keys=rows,
            occurrences=rows,
            rows=rows,
            seed=self._epoch_state.seed,
            epoch=self._epoch_state.epoch,
            pickled=pickle.dumps(Task(self._passes.run, self._shared_seed, index)),
            worker=worker,
        )
        self._manager.submit(batch)

    def _batch(self, job: Job) -> tuple[bool, Batch]:
        if job.after is not None and job.after.ended:
            self._passes.returned(job)
            if job.after.state is not None:
                self._epoch_state.workers[job.worker] = job.after.state
            job.returned = True
            return False, None
        if job.position < 0:
            job.position = self._positions
            self._positions += 1  # no call is made in between, so that no exception can come
        has = self._repeats and self._epoch_state.has(job.position)
        if has and not job.failures:  # a failed one fails again
            self._passes.returned(job)
            job.discarded = True
            return False, None
        return super()._batch(job)

    def _returned(self, job: Job) -> Returned:
        self._passes.returned(job)
        # Workers of an iterable end at different times, so the number is only a count.
        number = job.position if self._is_iterable else job.number
        return Returned(number, job.worker, None if job.after is None else job.after.state)

    def _count_samples(self, job: Job) -> int:
        asked = len(job.indices) if self._options.auto_collation else asked_samples(job.indices[0])
        return made_samples(job.result, asked) if self._is_iterable else asked
