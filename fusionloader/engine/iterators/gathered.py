"""Mini-batches of tensors in memory, gathered in the training process whatever ``num_workers`` is.

A gather costs less than to take a batch over from a worker, so none is started.
"""

from __future__ import annotations

import time

from torch.utils.data._utils.pin_memory import pin_memory

from fusionloader.data.epochs.epoch_state import EpochState
from fusionloader.data.epochs.sampling import SampledBatch, make_keys
from fusionloader.data.sources.tensors import NotGathered, gather
from fusionloader.engine.iterators.in_process import InProcessIterator
from fusionloader.options.aliases import Batch


class GatheredIterator(InProcessIterator):
    """Gathers a mini-batch when it is asked for."""

    _is_keyed = False
    _why_here = "tensors in memory"

    def _begin(self) -> EpochState:
        epoch_state = super()._begin()
        if self._options.num_workers > 0:  # torch draws the first ones of the sampler now
            self._due = next(self._batches.now(), None)
        return epoch_state

    def _notice_changes(self) -> None:
        """Does nothing: each gather looks at the dataset."""

    def _make(self, due: SampledBatch, epoch_state: EpochState) -> tuple[bool, Batch]:
        start = time.perf_counter()
        try:
            batch = gather(self._options.dataset, due.indices)
        except NotGathered:
            indices = due.indices
            due = due._replace(keys=make_keys(indices), occurrences=[0] * len(indices))
            super()._notice_changes()
            return super()._make(due, epoch_state)
        count, statistics = len(due.indices), self._statistics
        statistics.workers.made += count
        statistics.workers.worker_seconds += time.perf_counter() - start
        statistics.batches += 1
        statistics.samples += count
        self._tracer.made(epoch_state.epoch, due.number, count)
        if self._pin_memory:
            batch = pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return True, batch
