"""Builds the GPU worker's tasks for a plan, in the flavour asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusionloader.executors.dali.memory.borrowing import may_borrow
from fusionloader.executors.dali.operations import Operation
from fusionloader.executors.device.task import Augment, GpuTask, NativeAugment
from fusionloader.executors.shortage import is_shortage
from fusionloader.plan.stages import Plan

if TYPE_CHECKING:
    from fusionloader.executors.dali.families.combinations import CombinationTasks
    from fusionloader.executors.dali.families.tasks import FamilyTasks

_WARM_UP_SIDE = 64
_ELEMENTS = {
    "uint8": np.uint8,
    "float16": np.float16,
    "bfloat16": np.uint16,  # which numpy does not have: only its bytes matter
    "float32": np.float32,
    "float64": np.float64,
}


def make_task(
    plan: Plan,
    device_id: int | None,
    prebuilt: str,
    most_samples: int,
    threads: int,
    hw_decoder_load: float,
) -> GpuTask:
    """Returns a task that has run once, so that nothing is built at the first group.

    It has not where memory is short now and can be borrowed by then.

    Args:
        plan: of a dataset of files.
        device_id: of a CUDA device, ``None`` for DALI's CPU backend.
        prebuilt: ``"fused"``, ``"families"`` or ``"combinations"``.
        most_samples: in a group.
        threads: of DALI on the CPU.
        hw_decoder_load: share of the images for the hardware JPEG decoder.

    Raises:
        ImportError: DALI is not there.
        RuntimeError: DALI cannot build a pipeline on the device.
    """
    from fusionloader.executors.dali.head import DaliHead

    head = DaliHead(device_id, most_samples, threads, hw_decoder_load=hw_decoder_load)
    task = GpuTask(plan, head, _augment(plan, device_id, prebuilt, most_samples), most_samples)
    try:
        task.warm_up(_an_image())
    except RuntimeError as error:
        if not (is_shortage(error) and may_borrow(device_id)):
            raise  # else the first launch borrows, and warms it up
    return task


def _augment(plan: Plan, device_id: int | None, prebuilt: str, most_samples: int) -> Augment:
    if prebuilt == "fused":
        if device_id is None:
            return NativeAugment(plan)
        from fusionloader.executors.device.cuda_augment import CudaAugment

        return CudaAugment(plan, device_id)
    from fusionloader.executors.dali.families.combinations import CombinationTasks
    from fusionloader.executors.dali.families.tasks import FamilyTasks

    assert plan.height is not None and plan.width is not None
    side = (plan.height, plan.width)
    families = FamilyTasks(device_id, most_samples, side, convert=plan.convert)
    pairs = None
    if prebuilt == "combinations":
        pairs = CombinationTasks(device_id, most_samples, side)
    return DaliAugment(plan, device_id, families, pairs)


class DaliAugment:
    """Prebuilt pipelines of stock DALI operators."""

    def __init__(
        self,
        plan: Plan,
        device_id: int | None,
        families: FamilyTasks,
        pairs: CombinationTasks | None,
    ) -> None:
        """``pairs`` augment if there are any, else ``families``, which convert in any case."""
        self._families = families
        self._augment = families.augment if pairs is None else pairs.augment
        assert plan.convert is not None and plan.height is not None and plan.width is not None
        self._shape = (plan.result_channels, plan.height, plan.width)
        self._element = plan.convert.element_type
        self._device_id = device_id

    def run(
        self,
        images: Sequence[Any],
        operations: Sequence[Sequence[Operation]],
        rows: Sequence[Any],
    ) -> list[str | None]:
        """See ``Augment``."""
        if images:
            done = self._augment(images, operations)
            write = self._to_slot if self._device_id is None else self._to_device
            write(done, operations, rows)
        return [None] * len(images)

    def _to_slot(
        self, images: Any, operations: Sequence[Sequence[Operation]], rows: Sequence[Any]
    ) -> None:
        out = np.empty((len(rows), *self._shape), _ELEMENTS[self._element])
        self._families.normalise(images, out, operations)
        for row, result in zip(rows, out, strict=True):
            row[:] = result.reshape(-1).view(np.uint8).data

    def _to_device(
        self, images: Any, operations: Sequence[Sequence[Operation]], rows: Sequence[Any]
    ) -> None:
        import torch

        out = [row.view(getattr(torch, self._element)).view(self._shape) for row in rows]
        self._families.normalise(images, out, operations)
        torch.cuda.current_stream(self._device_id).synchronize()


def _an_image() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (_WARM_UP_SIDE, _WARM_UP_SIDE), (90, 120, 150)).save(file, "JPEG")
    return file.getvalue()
