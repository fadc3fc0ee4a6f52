"""The augment task by prebuilt pipelines of stock DALI operators, which need no CUDA compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fusionloader.executors.dali.families.tasks import FamilyTasks
from fusionloader.executors.device.memory import allocate_on_host, allocator_of_torch
from fusionloader.executors.device.task import Image, Row, rows_in
from fusionloader.plan.operations import Operation
from fusionloader.plan.stages import Plan

if TYPE_CHECKING:
    import torch

_ELEMENTS = {
    "uint8": np.uint8,
    "float16": np.float16,
    "bfloat16": np.uint16,  # which numpy does not have: only its bytes matter
    "float32": np.float32,
    "float64": np.float64,
}


class DaliAugment:
    """Applies operations and converts by op families."""

    def __init__(self, plan: Plan, device_id: int | None, most_samples: int) -> None:
        """Builds all pipelines, for groups of ``most_samples``; see ``make_task``."""
        assert plan.convert is not None and plan.height is not None and plan.width is not None
        side = (plan.height, plan.width)
        self._families = FamilyTasks(device_id, most_samples, side, convert=plan.convert)
        self._shape = (plan.result_channels, *side)
        self._element = plan.convert.element_type
        self._device_id = device_id

    def rows(self, count: int, row_bytes: int) -> Sequence[Row]:
        """See ``Augment``."""
        if self._device_id is None:
            return rows_in(allocate_on_host(count * row_bytes), count)
        import torch

        allocate = allocator_of_torch(torch.cuda.current_stream(self._device_id))
        return rows_in(allocate(count * row_bytes), count)

    def run(
        self,
        images: Sequence[Image],
        operations: Sequence[Sequence[Operation]],
        rows: Sequence[Row],
    ) -> list[str | None]:
        """See ``Augment``."""
        if images:
            done = self._families.augment(images, operations)
            write = self._to_slot if self._device_id is None else self._to_device
            write(done, operations, rows)
        return [None] * len(images)

    def _to_slot(
        self,
        images: Sequence[Image],
        operations: Sequence[Sequence[Operation]],
        rows: Sequence[Row],
    ) -> None:
        out = np.empty((len(rows), *self._shape), _ELEMENTS[self._element])
        self._families.normalise(images, out, operations)
        for row, result in zip(rows, out, strict=True):
            ctypes.memmove(row.address, result.ctypes.data, row.nbytes)

    def _to_device(
        self,
        images: Sequence[Image],
        operations: Sequence[Sequence[Operation]],
        rows: Sequence[Row],
    ) -> None:
        import torch

        element = getattr(torch, self._element)
        out = [_tensor_over(row).view(element).view(self._shape) for row in rows]
        self._families.normalise(images, out, operations)
        torch.cuda.current_stream(self._device_id).synchronize()


class _Bytes:
    """Memory of a device as torch takes it from other libraries."""

    def __init__(self, row: Row) -> None:
        self.__cuda_array_interface__ = {
            "shape": (row.nbytes,),
            "typestr": "|u1",
            "data": (row.address, False),
            "strides": None,
            "version": 2,
        }


def _tensor_over(row: Row) -> torch.Tensor:
    import torch

    return torch.as_tensor(_Bytes(row), device="cuda")
