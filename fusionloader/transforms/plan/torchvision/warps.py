"""Converts torchvision's rotations, affine and perspective transforms to stages."""

from __future__ import annotations

from fusionloader.transforms.plan.arguments import (
    Context,
    Converter,
    NotCompiled,
    Transform,
    color,
    for_both_versions,
    interpolation_name,
    numbers,
)
from fusionloader.transforms.plan.stages import (
    Color,
    RandomAffine,
    RandomApply,
    RandomPerspective,
    RandomRotation,
    Stage,
)
from fusionloader.transforms.plan.torchvision.on_tensors import (
    OTHERWISE,
    grows_natively,
    warp_rounding,
)


def converters() -> dict[type, Converter]:
    known = {
        "RandomRotation": _random_rotation,
        "RandomAffine": _random_affine,
        "RandomPerspective": _random_perspective,
    }
    return for_both_versions(known)


def _random_rotation(step: Transform, context: Context) -> Stage:
    rounding = warp_rounding(step, context)
    if step.expand and rounding != "pillow" and not grows_natively(rounding):
        raise NotCompiled(OTHERWISE)
    return RandomRotation(
        numbers(step.degrees, "degrees"),
        interpolation_name(step.interpolation),
        bool(step.expand),
        _centre(step),
        _fill(step, context),
        rounding,
    )


def _random_affine(step: Transform, context: Context) -> Stage:
    shear, rounding = step.shear, warp_rounding(step, context)
    return RandomAffine(
        numbers(step.degrees, "degrees"),
        None if step.translate is None else numbers(step.translate, "translate"),
        None if step.scale is None else numbers(step.scale, "scale"),
        None if shear is None else numbers(shear[:2], "shear"),
        None if shear is None or len(shear) < 4 else numbers(shear[2:], "shear"),
        interpolation_name(step.interpolation),
        _centre(step),
        _fill(step, context),
        rounding,
    )


def _random_perspective(step: Transform, context: Context) -> Stage:
    distortion = float(step.distortion_scale)
    if not 0 <= distortion <= 1:
        raise NotCompiled(f"distortion_scale={distortion}")
    interpolation, rounding = interpolation_name(step.interpolation), warp_rounding(step, context)
    stage = RandomPerspective(distortion, interpolation, _fill(step, context), rounding)
    return RandomApply(float(step.p), (stage,))


def _fill(step: Transform, context: Context) -> Color:
    return context.border(color(step.fill, context.channels))


def _centre(step: Transform) -> tuple[float, float] | None:
    return None if step.center is None else numbers(step.center, "center")
