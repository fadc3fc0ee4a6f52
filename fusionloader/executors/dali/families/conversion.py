"""From levels to the plan's elements: as a multiplication where that is right, else by table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from nvidia.dali import fn, types

from fusionloader import _native
from fusionloader.executors.dali.errors import NotOnDali
from fusionloader.executors.dali.families.affine_tables import Affine, affine_of
from fusionloader.executors.dali.families.steps import AFTER_CONVERSION
from fusionloader.executors.dali.task import Backend, Graph, Image, Node, PipelineTask
from fusionloader.executors.native import make_executor
from fusionloader.plan.operations import Operation
from fusionloader.plan.stages import Convert, Plan

# Rows of a batch: an array of all of them, or a tensor for each.
Rows = Any
_DALI_TYPES = {"float32": types.FLOAT, "float16": types.FLOAT16}


class Conversion:
    """Writes converted images into the rows of a batch."""

    def __init__(self, backend: Backend, convert: Convert, shape: tuple[int, ...]) -> None:
        """``shape`` is the images': height x width x channels.

        Raises:
            NotOnDali: the table is no multiplication and addition, on a GPU.
        """
        height, width, channels = shape
        self._backend = backend
        self._by_table: _native.Executor | None = None
        if not backend.on_gpu:
            plan = Plan((), convert, height, width, "exact", backend.channels, backend.channels)
            self._by_table = make_executor(plan)
        self._task: PipelineTask | None = None
        affine = affine_of(convert, channels)
        if affine is not None and convert.element_type in _DALI_TYPES:
            self._task = PipelineTask(backend, _graph(convert, affine), {})
            self._task.build()
            if not backend.on_gpu:
                self._task.run([np.zeros(shape, np.uint8)], [()])
        elif backend.on_gpu:
            raise NotOnDali("the conversion is no multiplication and addition")

    def write(
        self, images: Sequence[Image], out: Rows, operations: Sequence[Sequence[Operation]]
    ) -> None:
        """Writes each image into its row; ``operations`` may hold what is done to rows.

        Raises:
            NotOnDali: something is to be erased on a GPU.
        """
        erased = [_after_conversion(drawn) for drawn in operations] or [[]] * len(images)
        by_table = [place for place in range(len(images)) if self._task is None or erased[place]]
        if self._backend.on_gpu and by_table:
            raise NotOnDali("erase works on rows of a batch in the memory of the CPU")
        for place in by_table:
            assert self._by_table is not None
            pixels = np.ascontiguousarray(images[place])
            self._by_table.run_pixels_with(pixels.data, erased[place], _bytes(out[place]))
        others = sorted(set(range(len(images))) - set(by_table))
        for begin in range(0, len(others), self._backend.max_batch):
            self._multiply(images, out, others[begin : begin + self._backend.max_batch])

    def _multiply(self, images: Sequence[Image], out: Rows, places: list[int]) -> None:
        assert self._task is not None
        made = self._task.run([images[place] for place in places], [()] * len(places))
        for place, result in zip(places, made, strict=True):
            if self._backend.on_gpu:
                from nvidia.dali.plugin.pytorch import feed_ndarray

                feed_ndarray(result, out[place])
            else:
                out[place] = result


def _graph(convert: Convert, affine: Affine) -> Graph:
    def graph(backend: Backend, images: Node) -> Node:
        return fn.crop_mirror_normalize(
            images,
            dtype=_DALI_TYPES[convert.element_type],
            output_layout="CHW",
            mean=list(affine.means),
            std=list(affine.deviations),
        )

    return graph


def _after_conversion(operations: Sequence[Operation]) -> list[Operation]:
    return [operation for operation in operations if operation[0] in AFTER_CONVERSION]


def _bytes(row: npt.NDArray[np.generic]) -> memoryview:
    return row.reshape(-1).view(np.uint8).data
