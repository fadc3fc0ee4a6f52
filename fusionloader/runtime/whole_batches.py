"""Whole batches per worker, as torch does it, for what cannot be written row by row.

Custom ``collate_fn``, samples of varying shape, strings, ``batch_size=None``, ``IterableDataset``:
torch's own iterators serve them. Here they learn to resume, to notice a changed epoch, and to go on
where another iterator stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data.dataloader import (
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from fusionloader.runtime.delivery import to_device
from fusionloader.runtime.epoch import Epochs, detached
from fusionloader.runtime.progress import Progress


def _not_delivered(batches: Iterator[tuple[int, Any]], progress: Progress) -> Iterator[Any]:
    delivered, ahead = progress.delivered, frozenset(progress.ahead)
    for number, batch in batches:
        if number >= delivered and number not in ahead:
            yield batch


class _Tracked:
    """Mixed into torch's iterators: knows the epoch and which of its batches were delivered."""

    _progress: Progress | None = None
    _base_seed: int
    _num_yielded: int
    _sampler_iter: Iterator[Any]

    def _track(self, loader: Any, epochs: Epochs) -> None:
        self._loader = detached(loader)
        self._epochs = epochs

    def _begin(self) -> Progress:
        if self._progress is None:
            self._progress = self._epochs.start(self._loader, self._base_seed)
            batches = self._epochs.indices(self._loader, self._progress, self._sampler_iter)
            self._remaining = _not_delivered(batches, self._progress)
            self._to_repeat = self._progress.delivered
        return self._progress

    def _next_index(self) -> Any:
        self._begin()
        return next(self._remaining)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._progress = None
        if not first_iter:
            self._loader = detached(loader)
        super()._reset(loader, first_iter)  # type: ignore[misc]

    def __next__(self) -> Any:
        progress = self._begin()
        if self._num_yielded == 0 and self._epochs.changed(self._loader):
            self._reset(self._loader)
            progress = self._begin()
        try:
            if self._loader._dataset_kind == _DatasetKind.Iterable:
                # An iterable dataset can only be resumed by going through it once more.
                while self._to_repeat > 0:
                    super().__next__()  # type: ignore[misc]
                    self._to_repeat -= 1
            batch = super().__next__()  # type: ignore[misc]
        except StopIteration:
            self._epochs.finish(progress)
            raise
        progress.deliver(progress.delivered)
        self._epochs.counters.batches += 1
        device = self._loader.device
        return batch if device is None else to_device(batch, torch.device(device))


class WholeBatchIterator(_Tracked, _MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """Worker ``i`` makes the mini-batches ``i, i + num_workers, ...``."""

    def __init__(self, loader: Any, epochs: Epochs) -> None:
        self._track(loader, epochs)
        super().__init__(loader)


class SingleProcessIterator(_Tracked, _SingleProcessDataLoaderIter):  # type: ignore[misc]
    """``num_workers=0``."""

    def __init__(self, loader: Any, epochs: Epochs) -> None:
        self._track(loader, epochs)
        super().__init__(loader)


class ContinuedIterator(WholeBatchIterator):
    """Serves the rest of an epoch that another iterator has begun."""

    def __init__(
        self,
        loader: Any,
        epochs: Epochs,
        progress: Progress,
        remaining: Iterator[Any],
        base_seed: int,
    ) -> None:
        """``remaining`` yields the mini-batches to do; ``base_seed`` seeds the workers."""
        self._track(loader, epochs)
        self._handed: tuple[Progress, Iterator[Any]] | None = (progress, remaining)
        _MultiProcessingDataLoaderIter.__init__(self, _Seeded(loader, base_seed))
        self._index_sampler = loader._index_sampler

    def _begin(self) -> Progress:
        if self._progress is None and self._handed is not None:
            self._progress, self._remaining = self._handed
            self._handed = None
            self._to_repeat = 0
        return super()._begin()


class _Seeded:
    """The loader, drawing from generators of its own: the user's have been drawn from already."""

    def __init__(self, loader: Any, seed: int) -> None:
        self._loader = loader
        self._index_sampler: list[Any] = []
        self.generator = torch.Generator().manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
