"""Tables of a loader's dataset in shared memory, from which native workers read samples."""

from __future__ import annotations

import logging
import os
from operator import itemgetter
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.sources.arrays import PixelArrays
from fusionloader.data.sources.datasets import Compiled
from fusionloader.data.sources.ranged_samples import RangedSamples
from fusionloader.system.shm.objects import SharedMemoryExhausted
from fusionloader.system.training_signals import raised_by_handler
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.results import result_like
from fusionloader.transforms.plan.stages import Plan, SplitPlan

log = logging.getLogger("fusionloader.loader")


def layout_of(plan: Plan) -> Layout | str:
    """Returns the layout of a complete plan's rows, or the reason why they have none."""
    if isinstance(plan, SplitPlan):
        return Layout.of((torch.empty(plan.row_bytes, dtype=torch.uint8, device="cpu"), 0))
    return Layout.of((result_like(plan), 0))


_MOST_LOADERS = 12  # whose tables are kept for their next epochs
_loaders_tables: WeakValueDictionary[int, Tables] = WeakValueDictionary()  # used last at the end


class _Files:
    """Paths and targets as they were when a loader last began an epoch."""

    def __init__(self, samples: list[tuple[str, int]]) -> None:
        targets = list(map(itemgetter(1), samples))  # faster than a loop
        self.targets = targets if set(map(type, targets)) == {int} else None
        # Tuples, since a list could be changed in place.
        self.samples = list(map(tuple, samples))
        self._table: DatasetTable | None = None

    def table(self) -> DatasetTable:
        if (table := self._table) is None:
            assert self.targets is not None
            paths = list(map(itemgetter(0), self.samples))
            if set(map(type, paths)) != {str}:
                paths = list(map(os.fsdecode, paths))
            self._table = table = DatasetTable.of_files(paths, self.targets)
        return table


class Tables:
    """The tables of a loader's dataset.

    Each is made once, and again if the dataset has changed or if many other loaders have made
    theirs since: a program may keep every loader that it has made, as Accelerate does.
    """

    def __init__(self) -> None:
        self._files: _Files | None = None
        self._pixels: DatasetTable | None = None
        self._subset: tuple[RangedSamples, npt.NDArray[np.int64], DatasetTable] | None = None

    def of(self, compiled: Compiled) -> DatasetTable | None:
        """Returns the table of a dataset; ``None`` if there is not enough shared memory.

        ``why_none`` must have returned an empty text for it.
        """
        self._keep()
        if compiled.kind == "pixels":
            return self._pixels_table(compiled.arrays())
        if compiled.kind == "ranges":
            images, indices = compiled.ranged()
            return self._ranges_table(images.ranged, indices)
        return self._files_of(compiled).table()

    def forget(self) -> None:
        """Frees the tables, once no worker uses them."""
        self._files = self._pixels = self._subset = None

    def _keep(self) -> None:
        """Keeps these tables, and forgets the ones that were used longest ago if there are many."""
        _loaders_tables.pop(id(self), None)
        _loaders_tables[id(self)] = self
        for tables in list(_loaders_tables.values())[:-_MOST_LOADERS]:
            tables.forget()
            _loaders_tables.pop(id(tables), None)

    def why_none(self, compiled: Compiled) -> str:
        """Returns why native workers cannot make samples from a table; empty if they can."""
        if compiled.plan is None:
            return "the samples are made by Python code"
        if compiled.parts:
            return "its parts have a plan each"
        if not compiled.complete:
            return "a part of the plan runs in Python"
        if compiled.kind not in ("folder", "ranges", "pixels"):
            return "the dataset reads the bytes"
        if isinstance(why := layout_of(compiled.plan), str):
            return why
        try:
            return "" if self._has_integers(compiled) else "the targets are not integers"
        except Exception as error:  # the user may have changed them, or the indices of a subset
            if raised_by_handler(error):
                raise
            return f"the samples cannot be listed ({type(error).__name__}: {error})"

    def _has_integers(self, compiled: Compiled) -> bool:
        if compiled.kind == "pixels":
            arrays = compiled.arrays()
            return len(arrays.targets) > 0 and not arrays.odd
        if compiled.kind == "ranges":
            return compiled.ranged()[0].ranged.has_integers
        return self._files_of(compiled).targets is not None

    def _files_of(self, compiled: Compiled) -> _Files:
        samples = compiled.samples()
        if (files := self._files) is None or files.samples != samples:
            self._files = files = _Files(samples)
            self._keep()
        return files

    def _ranges_table(
        self, samples: RangedSamples, indices: npt.NDArray[np.int64] | None
    ) -> DatasetTable:
        if indices is None:
            return samples.table()
        subset = self._subset
        if subset is None or subset[0] is not samples or not np.array_equal(subset[1], indices):
            self._subset = subset = (samples, indices.copy(), samples.subset_table(indices))
        return subset[2]

    def _pixels_table(self, arrays: PixelArrays) -> DatasetTable | None:
        table = self._pixels
        if table is None or not table.has_pixels(arrays.images, arrays.targets):
            self._pixels = table = None
            try:
                self._pixels = table = DatasetTable.of_pixels(arrays.images, arrays.targets)
            except SharedMemoryExhausted as error:
                log.warning("every worker keeps the images of the dataset for itself: %s", error)
        return table
