"""The datasets of a loader in shared memory, where workers of plans find their samples."""

from __future__ import annotations

import logging
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from fusionloader.executors.layout import Layout
from fusionloader.executors.results import result_like
from fusionloader.plan.stages import Plan
from fusionloader.shm.dataset_table import DatasetTable
from fusionloader.shm.objects import SharedMemoryExhausted
from fusionloader.sources.arrays import PixelArrays
from fusionloader.sources.datasets import Compiled
from fusionloader.sources.ranged_samples import RangedSamples

log = logging.getLogger("fusionloader.loader")


def layout_of(plan: Plan) -> Layout | str:
    """Returns the layout of a complete plan's samples, or why they have none."""
    return Layout.of((result_like(plan), 0))


def is_for_native_workers(compiled: Compiled) -> bool:
    """Whether a plan is the whole way of samples that workers find in a table.

    Odd targets are not looked for.
    """
    if not compiled.complete or compiled.kind not in ("folder", "ranges", "pixels"):
        return False
    return compiled.plan is not None and not isinstance(layout_of(compiled.plan), str)


class Tables:
    """Each made once while the dataset stays the same."""

    def __init__(self) -> None:
        self._files: tuple[list[tuple[str, int]], DatasetTable] | None = None
        self._pixels: DatasetTable | None = None
        self._subset: tuple[RangedSamples, npt.NDArray[np.int64], DatasetTable] | None = None

    def of(self, dataset: Any, compiled: Compiled) -> DatasetTable | None:
        """Returns the dataset in shared memory, made once while it stays the same.

        ``None`` when workers have to run Python: a tail, bytes from the dataset, odd targets,
        collate functions of the user's own.
        """
        if not is_for_native_workers(compiled):
            return None
        if compiled.kind == "pixels":
            return self._of_pixels(compiled.arrays(dataset))
        if compiled.kind == "ranges":
            images, indices = compiled.ranged(dataset)
            return self._of_ranges(images.ranged, indices)
        samples = compiled.samples(dataset)
        if self._files is None or self._files[0] != samples:
            targets = list(map(itemgetter(1), samples))  # a million in less than a loop takes
            if set(map(type, targets)) != {int}:
                return None
            paths = list(map(itemgetter(0), samples))
            self._files = (list(samples), DatasetTable.of_files(paths, targets))
        return self._files[1]

    def _of_ranges(
        self, samples: RangedSamples, indices: npt.NDArray[np.int64] | None
    ) -> DatasetTable | None:
        if not samples.has_integers:
            return None
        if indices is None:
            return samples.table()
        kept = self._subset
        if kept is None or kept[0] is not samples or not np.array_equal(kept[1], indices):
            self._subset = kept = (samples, indices.copy(), samples.table_of(indices))
        return kept[2]

    def _of_pixels(self, arrays: PixelArrays) -> DatasetTable | None:
        if not len(arrays.targets) or arrays.odd:
            return None
        table = self._pixels
        if table is None or not table.has_pixels(arrays.images, arrays.targets):
            self._pixels = None
            try:
                self._pixels = DatasetTable.of_pixels(arrays.images, arrays.targets)
            except SharedMemoryExhausted as error:
                log.warning("every worker keeps the images of the dataset for itself: %s", error)
        return self._pixels
