"""What of a plan the head and the op families cannot do. No DALI here."""

from __future__ import annotations

from collections.abc import Iterator

from fusionloader.executors.dali.errors import NotOnDali
from fusionloader.executors.dali.families.affine_tables import affine_of
from fusionloader.executors.dali.families.steps import step_of
from fusionloader.executors.dali.head_steps import FILTERS
from fusionloader.plan import stages as st
from fusionloader.plan.operations import Operation

_WARPS = ("nearest", "bilinear")
# Operations of policies that are no warps and that a family does.
_DONE = frozenset(
    (
        *("identity", "brightness", "contrast", "saturation", "sharpness", "posterize"),
        *("solarize", "solarize_add", "invert", "autocontrast", "equalize", "cutout", "hflip"),
    )
)
_NOT_DONE = frozenset({"box_blur", "box_blur_up_to"})


def first_unsupported(plan: st.Plan, *, on_gpu: bool) -> str | None:
    """The first operation of a plan that DALI's head and families cannot do, and why.

    ``None`` if they can do all of it, for every draw.
    """
    return next(_reasons(plan, on_gpu), None)


def _reasons(plan: st.Plan, on_gpu: bool) -> Iterator[str]:
    remaining = plan.stages
    first = remaining[0] if remaining else None
    if isinstance(first, st.RandomResizedCrop | st.Resize):
        yield from _head(first)
        remaining = remaining[1:]
    for stage in remaining:
        yield from _stage(stage, on_gpu)
    if plan.height is None or plan.width is None:
        yield "images that differ in size after the head"
    if plan.channels != plan.result_channels:
        yield "grayscale that changes the number of channels"
    if plan.channels == 1:
        yield "decode to grey levels"
    if on_gpu and plan.convert is not None and affine_of(plan.convert, plan.channels) is None:
        yield "a conversion that is no multiplication and addition"


def _head(stage: st.RandomResizedCrop | st.Resize) -> Iterator[str]:
    filters = stage.filters if isinstance(stage, st.RandomResizedCrop) else (stage.filter,)
    for filter in filters:
        if filter not in FILTERS:
            yield f"{_name(stage)} with the filter {filter!r}"


def _stage(stage: st.Stage, on_gpu: bool) -> Iterator[str]:
    if isinstance(stage, st.RandomHorizontalFlip | st.RandomVerticalFlip | st.GaussianBlur):
        return
    if isinstance(stage, st.ColorJitter):
        if stage.hue is not None:
            yield "hue of ColorJitter"
    elif isinstance(stage, st.RandomRotation | st.RandomAffine):
        yield from _warp(_name(stage), (stage.interpolation,))
        if getattr(stage, "expand", False):
            yield f"{_name(stage)} with expand=True"
    elif isinstance(stage, st.Fixed):
        yield from _fixed(stage.operation)
    elif isinstance(stage, st.RandomPolicy):
        yield from _policy(stage)
    elif isinstance(stage, st.RandomErasing):
        if on_gpu:
            yield "RandomErasing of rows in the memory of a GPU"
    elif isinstance(stage, st.Container):
        for branch in st.branches_of(stage):
            for inner in branch:
                yield from _stage(inner, on_gpu)
    else:
        yield _name(stage)


def _policy(policy: st.RandomPolicy) -> Iterator[str]:
    for steps in policy.policies:
        for step in steps:
            if step.op in _NOT_DONE:
                yield f"{step.op} of a policy"
            elif step.op not in _DONE:
                yield from _warp(f"{step.op} of a policy", policy.interpolations)


def _warp(name: str, interpolations: tuple[str, ...]) -> Iterator[str]:
    for interpolation in interpolations:
        if interpolation not in _WARPS:
            yield f"{name} with the filter {interpolation!r}"


def _fixed(operation: Operation) -> Iterator[str]:
    try:
        step_of(operation, 224, 224)
    except NotOnDali as reason:
        yield str(reason)


def _name(stage: st.Stage) -> str:
    return type(stage).__name__
