"""Batches that are copied to a device as 8-bit levels, and converted there.

If a plan ends in a table from levels to elements, the device can apply the table. Levels take a
quarter of float32's bytes, both in shared memory and on the bus.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fusionloader.transforms.executors.device.kernel import CONVERT_LEVELS
from fusionloader.transforms.executors.device.nvrtc import why_missing
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.results import result_like
from fusionloader.transforms.plan.stages import (
    Container,
    Convert,
    Plan,
    RandomErasing,
    Stage,
    get_branches,
)

_LEVELS = bytes(range(256))


@dataclass(frozen=True, slots=True)
class LevelRows:
    """How the levels of a batch's first leaf become its elements.

    Attributes:
        table: ``channels * 256`` elements in machine byte order, channel by channel.
        element_bytes: size of an element in bytes.
        plane_levels: number of levels in a channel of one sample, height times width.
        layout: layout of the batch on the device.
    """

    table: bytes
    element_bytes: int
    plane_levels: int
    layout: Layout
    kernel: ClassVar[str] = CONVERT_LEVELS

    def work_bytes(self, rows: int) -> int:
        """Returns 0: the kernel works in no memory of its own."""
        return 0

    def for_copier(self, kernel: int, table: int) -> tuple[int, int, int, int]:
        """Returns the conversion for a ``Copier``; ``table`` is its address on the device."""
        return kernel, table, self.plane_levels, self.element_bytes


def make_levels_plan(plan: Plan) -> Plan | str:
    """Returns ``plan`` without its conversion, or a text that says why that is impossible."""
    convert = plan.convert
    if convert is None or plan.height is None or plan.width is None:
        return "results of the plan are not tensors of one shape"
    if convert.element_type == "uint8":
        return "they are 8-bit levels already"
    if plan.works_on_floats:
        return "stages of the plan work on elements of the batch"
    if _erases(plan.stages):
        return "RandomErasing changes elements of the batch"
    return replace(plan, convert=Convert("uint8", _LEVELS * plan.result_channels))


def level_rows(plan: Plan, layout: Layout) -> LevelRows:
    """Returns the conversion of a plan for which ``make_levels_plan`` returns a plan."""
    assert plan.convert is not None
    result = result_like(plan)
    return LevelRows(plan.convert.table, result.element_size(), result[0].numel(), layout)


def explain(plan: Plan | None) -> str:
    """Returns the line of ``explain()`` on copies to a device; ``plan`` is ``None`` for code."""
    levels = "samples are made in Python" if plan is None else make_levels_plan(plan)
    why = levels if isinstance(levels, str) else why_missing()
    if why is not None:
        return f"batches cross to the device as they are: {why}"
    return "batches cross to the device as 8-bit levels, and are converted there"


def _erases(stages: tuple[Stage, ...]) -> bool:
    return any(
        isinstance(stage, RandomErasing)
        or (isinstance(stage, Container) and any(map(_erases, get_branches(stage))))
        for stage in stages
    )
