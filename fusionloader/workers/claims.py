"""What Python workers read of a claim: the keys of its samples, and the places of their rows."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from fusionloader import _native
from fusionloader.data.deferred.rows.sample_rows import LEAST_BYTES, SampleColumn
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.python import SampleKey

SKIPPED = object()
"""Stands for a sample that is left out."""


def read_indices(claim: _native.Claim) -> list[Any] | None:
    """Returns the indices of the mini-batch; ``None`` if they are its item numbers."""
    return pickle.loads(claim.indices()) if len(claim.indices()) else None


_make_key = partial(tuple.__new__, SampleKey)  # half the time of SampleKey(...)


def read_keys(claim: _native.Claim, start: int, stop: int) -> list[SampleKey]:
    """Returns the keys of the samples at positions ``start`` to ``stop - 1``."""
    indices = read_indices(claim)
    items, *draws = claim.sample_keys(start, stop)
    found = items if indices is None else indices[start:stop]
    values = zip(found, repeat(claim.seed), repeat(claim.epoch), *draws, strict=False)
    return list(map(_make_key, values))


def first_unpicklable(samples: list[Any]) -> int:
    """Returns the number of the first sample that cannot be pickled, 0 if there is none."""
    for number, sample in enumerate(samples):
        try:
            pickle.dumps(sample)
        except Exception:
            return number
    return 0


class ClaimedRows:
    """The rows of a claim's samples, by their positions in the order of the tiny-batches.

    Attributes:
        are_scattered: whether a row is not its position.
    """

    def __init__(self, queue: _native.WorkerQueue) -> None:
        self._queue = queue
        self._begin = 0
        self._rows: list[int] | None = None

    def begin(self, claim: _native.Claim, begin: int, end: int) -> None:
        """Begins a claim of positions ``begin`` to ``end - 1``."""
        self._begin, self._rows = begin, claim.scattered_rows(begin, end)

    @property
    def are_scattered(self) -> bool:
        return self._rows is not None

    def row(self, position: int) -> int:
        return position if self._rows is None else self._rows[position - self._begin]

    @property
    def sample(self) -> int | None:
        """Row of the sample that is being made, if any is."""
        position = self._queue.sample
        return None if position is None else self.row(position)


@dataclass(frozen=True, slots=True)
class ClaimedSlot:
    """The slot with the rows of a claim."""

    queue: _native.WorkerQueue
    claim: _native.Claim

    @property
    def number(self) -> int:
        assert self.claim.payload is not None
        return self.claim.payload

    def map_row(self, begin: int, nbytes: int) -> _native.RowMapping:
        return self.queue.map_row(self.claim, begin, nbytes)


def find_columns(layout: Layout, rows: int) -> list[SampleColumn | None]:
    """Returns the leaves of a batch whose tensors can be made in their rows."""
    return [
        SampleColumn((leaf.shape, leaf.dtype), begin, leaf.nbytes)
        if leaf.kind == "tensor" and leaf.nbytes >= LEAST_BYTES
        else None
        for leaf, begin in zip(layout.leaves, layout.offsets(rows), strict=True)
    ]
