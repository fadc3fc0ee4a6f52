"""Splits a plan: CPU workers decode, crop and resize, and a device runs the last stages.

The split falls behind the last stage that may change the size of the image, or that the fused
kernel cannot run. The worker that has drawn a sample builds its program, so the size of programs,
and of the memory that they work in, has to be bounded for the whole plan.
"""

from __future__ import annotations

from dataclasses import fields

from fusionloader.transforms.executors.device.support import why_not
from fusionloader.transforms.plan.stages import (
    ColorJitter,
    Container,
    Fixed,
    GaussianBlur,
    Plan,
    RandomAffine,
    RandomChoice,
    RandomErasing,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomPolicy,
    RandomRotation,
    RandomVerticalFlip,
    SplitPlan,
    Stage,
    flat,
    get_branches,
)

_FLIPS = (RandomHorizontalFlip, RandomVerticalFlip)
_KEEP_SIZE = (
    *_FLIPS,
    ColorJitter,
    GaussianBlur,
    RandomAffine,
    RandomErasing,
    RandomPerspective,
    RandomPolicy,
)
# Of csrc/device/program.hpp: header and record of a program with the padding of its four lists; a
# step alone, and with a table of 256 levels; an erasure with the elements of a pixel.
_PROGRAM_BYTES = 48 + 144 + 3 * 16
_FLIP_BYTES = 88
_STEP_BYTES = 88 + 256
_ERASURE_BYTES = 20 + 32
_JITTERS = 4  # brightness, contrast, saturation, hue
_PIXEL_BYTES = 4  # of an image that a kernel works on
_WEIGHED_BYTES = 12  # three float32, between the passes of a Gaussian blur


def split_plan(plan: Plan) -> SplitPlan | str:
    """Returns the plan with as many stages as possible for a device, or why there are none."""
    if plan.convert is None or plan.height is None or plan.width is None:
        return "results of the plan are not tensors of one shape"
    if plan.works_on_floats:
        return "stages work on floats, after the conversion"
    first, why = len(plan.stages), None
    while first > 0 and (why := _why_on_cpu(plan.stages[first - 1])) is None:
        first -= 1
    tail = plan.stages[first:]
    if all(isinstance(stage, _FLIPS) for stage in flat(tail)):
        behind = why or "there is nothing else"
        return f"nothing but flips and the conversion can be left to the device: {behind}"
    work = 2 * _PIXEL_BYTES * (pixels := plan.height * plan.width)
    blurs = any(isinstance(stage, GaussianBlur) for stage in flat(tail))
    work += _WEIGHED_BYTES * pixels if blurs else _PIXEL_BYTES * (plan.height + plan.width)
    return SplitPlan(
        **{each.name: getattr(plan, each.name) for each in fields(Plan)},
        device_stages=len(tail),
        program_bytes=_aligned(_PROGRAM_BYTES + sum(map(_most_bytes, tail))),
        work_bytes=_aligned(work + 3 * 16),
    )


def describe_tail(plan: SplitPlan) -> str:
    """Returns the names of the stages that the device runs, each once."""
    tail = flat(plan.stages[len(plan.stages) - plan.device_stages :])
    names = [
        stage.operation[0] if isinstance(stage, Fixed) else type(stage).__name__ for stage in tail
    ]
    return ", ".join(dict.fromkeys(names))


def _why_on_cpu(stage: Stage) -> str | None:
    """Returns why a CPU worker has to run a stage; ``None`` if a device can, behind a crop."""
    alone = Plan((stage,), None, None, None)
    if (why := why_not(alone, None)) is not None:
        return why
    for each in flat((stage,)):
        if not _keeps_size(each):
            return f"{type(each).__name__} may change the size of the image"
    return None


def _keeps_size(stage: Stage) -> bool:
    if isinstance(stage, Fixed):
        return stage.operation[0] != "pad"
    if isinstance(stage, RandomRotation):
        return not stage.expand
    return isinstance(stage, _KEEP_SIZE)


def _most_bytes(stage: Stage) -> int:
    """Returns the most bytes that what is drawn for a stage takes in a program."""
    if isinstance(stage, Container):
        branches = [sum(map(_most_bytes, branch)) for branch in get_branches(stage)]
        return max(branches, default=0) if isinstance(stage, RandomChoice) else sum(branches)
    if isinstance(stage, _FLIPS):
        return _FLIP_BYTES
    if isinstance(stage, RandomErasing):
        return _ERASURE_BYTES * max(stage.least_boxes, stage.most_boxes)
    if isinstance(stage, RandomPolicy):
        return _STEP_BYTES * stage.repeats * max(map(len, stage.policies), default=0)
    if isinstance(stage, GaussianBlur):
        weights = stage.kernel_width // 2 + stage.kernel_height // 2 + 2
        return _STEP_BYTES + 4 * weights + 16
    return _STEP_BYTES * (_JITTERS if isinstance(stage, ColorJitter) else 1)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 16) * 16
