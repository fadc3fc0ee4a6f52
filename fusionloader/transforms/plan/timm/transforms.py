"""Converts timm's crops and resizes to stages; its policies are in ``timm.policies``."""

from __future__ import annotations

from functools import partial
from typing import get_args

from fusionloader.transforms.plan.arguments import (
    Context,
    Converter,
    NotCompiled,
    Transform,
    color,
    filter_name,
    numbers,
    pair,
)
from fusionloader.transforms.plan.stages import (
    CropOrPad,
    Filter,
    PadMode,
    RandomResizedCrop,
    ResizeKeepRatio,
    Stage,
    TrimBorder,
)
from fusionloader.transforms.plan.timm import policies as timm_policies
from fusionloader.transforms.plan.timm.names import timm_name


def converters() -> dict[type, Converter]:
    """Returns the converters of timm's classes; no transform matches them without timm."""
    known: dict[str, Converter] = {
        "RandomResizedCropAndInterpolation": _random_resized_crop,
        "ResizeKeepRatio": _resize_keep_ratio,
        "CenterCropOrPad": partial(_crop_or_pad, random=False),
        "RandomCropOrPad": partial(_crop_or_pad, random=True),
        "TrimBorder": _trim_border,
    }
    made = {timm_name("transforms", name): make for name, make in known.items()}
    return {**made, **timm_policies.converters()}


def _random_resized_crop(step: Transform, context: Context) -> Stage:
    # timm draws windows as torchvision does: ten attempts with the same rule, then the middle.
    context.require_pil()
    height, width = pair(step.size)
    scale, ratio = numbers(step.scale, "scale"), numbers(step.ratio, "ratio")
    if not (0 < scale[0] <= scale[1] and 0 < ratio[0] <= ratio[1]):
        raise NotCompiled("its scale or ratio is not an increasing pair of positive numbers")
    return RandomResizedCrop(height, width, scale, ratio, _filters(step))


def _resize_keep_ratio(step: Transform, context: Context) -> Stage:
    context.require_pil()
    height, width = pair(step.size)
    scale = numbers(step.random_scale_range, "random_scale_range")
    aspect = numbers(step.random_aspect_range, "random_aspect_range")
    if min(*scale, *aspect) <= 0:
        raise NotCompiled("its random_scale_range or random_aspect_range is not positive")
    return ResizeKeepRatio(
        height,
        width,
        float(step.longest),
        _filters(step),
        float(step.random_scale_prob),
        scale,
        bool(step.random_scale_area),
        float(step.random_aspect_prob),
        aspect,
    )


def _crop_or_pad(step: Transform, context: Context, random: bool) -> Stage:
    context.require_pil()
    if step.padding_mode not in get_args(PadMode):
        raise NotCompiled(f"padding_mode={step.padding_mode!r}")
    height, width = pair(step.size)
    fill = color(step.fill, context.channels)
    return CropOrPad(height, width, random, step.padding_mode, fill)


def _trim_border(step: Transform, context: Context) -> Stage:
    context.require_pil()
    if not isinstance(step.border_size, int) or step.border_size < 0:
        raise NotCompiled(f"border_size={step.border_size!r}")
    return TrimBorder(step.border_size)


def _filters(step: Transform) -> tuple[Filter, ...]:
    given = step.interpolation
    modes = given if isinstance(given, (list, tuple)) else [given]
    return tuple(filter_name(mode) for mode in modes)
