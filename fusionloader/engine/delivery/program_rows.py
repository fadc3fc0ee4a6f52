"""Batches that are copied to a device as pixels with programs, and augmented there.

CPU workers decode, crop and resize. What they drew for the last stages of the plan lies behind the
pixels of each row, as a program of the fused kernel. The device runs it on the way into the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from fusionloader.engine.delivery.level_rows import LevelRows
from fusionloader.transforms.executors.device.kernel import AUGMENT_ROWS
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.results import result_like
from fusionloader.transforms.plan.stages import SplitPlan

# A block of the kernel fills a processor, of which large devices have 132 to 160.
_MOST_ROWS = 256  # in a launch
_FEWEST_ROWS = 32
_WORK_BYTES = 256 << 20  # for the rows in a launch, unless these are the fewest


@dataclass(frozen=True, slots=True)
class ProgramRows:
    """How pixels with programs become rows of a batch's first leaf.

    Attributes:
        plan: the plan that workers run in part.
        layout: layout of the batch on the device.
        result_bytes: bytes of a row on the device.
    """

    plan: SplitPlan
    layout: Layout
    result_bytes: int
    kernel: ClassVar[str] = AUGMENT_ROWS

    @property
    def table(self) -> bytes:
        """Elements of the conversion, which programs share."""
        assert self.plan.convert is not None
        return self.plan.convert.table

    @property
    def rows_at_once(self) -> int:
        """Rows in a launch, a multiple of 32."""
        fitting = _WORK_BYTES // self.plan.work_bytes // 32 * 32
        return min(max(fitting, _FEWEST_ROWS), _MOST_ROWS)

    def work_bytes(self, rows: int) -> int:
        """Returns the bytes of device memory that the programs of ``rows`` rows work in."""
        return min(rows, self.rows_at_once) * self.plan.work_bytes

    def for_copier(self, kernel: int, table: int) -> tuple[int, int, int, int, int, int]:
        """Returns the conversion for a ``Copier``; ``table`` is its address on the device."""
        plan, at_once = self.plan, self.rows_at_once
        return kernel, table, plan.program_offset, self.result_bytes, plan.work_bytes, at_once


RowConversion: TypeAlias = LevelRows | ProgramRows
"""What a device does to the first leaf of each row."""


def program_rows(plan: SplitPlan, layout: Layout) -> ProgramRows:
    """Returns the conversion of a split plan; ``layout`` is that of the batch on the device."""
    return ProgramRows(plan, layout, result_like(plan).nbytes)
