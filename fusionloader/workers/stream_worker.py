"""The Python worker that iterates over a dataset on its own, a whole mini-batch at a time.

It serves an ``IterableDataset`` and a dataset with a ``state_dict()``, whose mini-batches depend on
those that the same worker has made before. Its mini-batches are claims that no other worker may
take. It sends the state of its dataset with each of them, and a replacement continues from there.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterDataPipe
from torch.utils.data.dataloader import _DatasetKind
from torch.utils.data.graph_settings import apply_random_seed

from fusionloader import _native
from fusionloader.transforms.executors.fetchers import (
    asked_samples,
    fetcher_state,
    made_samples,
    make_fetcher,
)
from fusionloader.transforms.executors.global_generators import set_generator_states
from fusionloader.transforms.executors.python import PickledGenerators, Source
from fusionloader.workers import messages
from fusionloader.workers.batch_worker import BatchWorker, Collating
from fusionloader.workers.claims import SKIPPED
from fusionloader.workers.python_worker import PythonWorkerConfig
from fusionloader.workers.sample_errors import BadSample


class Task(NamedTuple):
    """A mini-batch to be made.

    Attributes:
        run: number of the pass through the dataset; the worker begins again if it changes.
        seed: seed shared by all workers, for an ``IterDataPipe``.
        index: argument of torch's fetcher.
    """

    run: int
    seed: int | None
    index: Any


class OwnPass(NamedTuple):
    """How a worker iterates over a dataset.

    Attributes:
        collating: how whole mini-batches are made.
        kind: kind of the dataset, one of torch's ``_DatasetKind``.
        drop_last: option of the loader.
        run: number of the first pass.
        last: state from which the worker continues or begins.
    """

    collating: Collating
    kind: int
    drop_last: bool
    run: int
    last: messages.StateAfter


class StreamWorker(BatchWorker):
    """Claims the mini-batches that are bound to it."""

    def __init__(
        self,
        config: PythonWorkerConfig,
        source: Source,
        queue: _native.WorkerQueue,
        pool: _native.WorkerQueue | None,
        own: OwnPass,
    ) -> None:
        super().__init__(config, source, queue, pool, own.collating)
        self._own, self._dataset = own, source.dataset
        self._run: int | None = None
        self._begun = self._ended = False
        self._fetcher: Any = None
        self._generators = PickledGenerators()

    def _batch(self, claim: _native.Claim) -> Any:
        self.queue.begin_sample(claim, claim.first, 0)
        task: Task = pickle.loads(claim.indices())
        try:
            try:
                batch = self._fetched(task)
                if self._rows is not None:
                    self._rows.settle()
            finally:
                self._send_state(claim)
        except Exception as error:
            raise BadSample(self._capture(error, "", 0)) from error
        if batch is not SKIPPED:
            samples = made_samples(batch, asked_samples(task.index))
            self.queue.end_samples(claim, claim.first, samples)
            self.queue.begin_sample(claim, claim.first, 0)
        return batch

    def _fetched(self, task: Task) -> Any:
        if task.run != self._run:
            self._begin(task)
        if self._ended:
            return SKIPPED
        try:
            return self._fetcher.fetch(task.index)
        except StopIteration:
            if self._own.kind != _DatasetKind.Iterable:
                raise
            self._ended = True
            return SKIPPED

    def _begin(self, task: Task) -> None:
        """Begins a pass, or continues that of the worker which this one replaces."""
        if isinstance(self._dataset, IterDataPipe):
            assert task.seed is not None
            generator = torch.Generator().manual_seed(task.seed)
            self._dataset = apply_random_seed(self._dataset, generator)
        own, last, state = self._own, self._own.last, None
        if not self._begun and last.state is not None:
            state = pickle.loads(last.state)
            state["between"] |= task.run != own.run

        def make() -> Any:
            return _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
                own.kind, self._dataset, self._auto_collation, self._collate, own.drop_last
            )

        self._fetcher = make_fetcher(make, self._dataset, state)
        if not self._begun and last.generators is not None:
            set_generator_states(pickle.loads(last.generators))
        self._begun, self._run = True, task.run
        self._ended = last.ended and task.run == own.run

    def _send_state(self, claim: _native.Claim) -> None:
        state = fetcher_state(self._fetcher) if self._fetcher is not None else None
        if state is None and not self._ended:
            return
        pickled = generators = None
        if state is not None:
            state["ended"] |= self._ended
            pickled, generators = pickle.dumps(state), self._generators.now()
        at = claim.sequence, claim.first
        self._send(messages.StateAfter(*at, pickled, generators, self._ended))
