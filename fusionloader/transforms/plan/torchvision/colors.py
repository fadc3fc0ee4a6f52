"""Converts torchvision's color changes and blur to stages."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from fusionloader.transforms.plan.arguments import (
    Argument,
    Context,
    Converter,
    NotCompiled,
    Transform,
    for_both_versions,
    numbers,
)
from fusionloader.transforms.plan.stages import (
    ColorJitter,
    Fixed,
    GaussianBlur,
    Operation,
    RandomApply,
    RandomChoice,
    Range,
    Stage,
)
from fusionloader.transforms.plan.torchvision.on_tensors import blur_rounding, rounding_of

_MOST_FACTOR = 1e6  # of floats, as in csrc/plan/float_augment.cpp
_JITTERED = ("brightness", "contrast", "saturation", "hue")


def converters() -> dict[type, Converter]:
    known = {
        "ColorJitter": _color_jitter,
        "Grayscale": _grayscale,
        "RandomGrayscale": _sometimes(lambda step: ("grayscale",)),
        "GaussianBlur": _gaussian_blur,
        "RandomInvert": _sometimes(lambda step: ("invert",)),
        "RandomAutocontrast": _sometimes(lambda step: ("autocontrast",)),
        "RandomEqualize": _sometimes(lambda step: ("equalize",)),
        "RandomPosterize": _sometimes(lambda step: ("posterize", _bits(step.bits))),
        "RandomSolarize": _sometimes(lambda step: ("solarize", float(step.threshold))),
        "RandomAdjustSharpness": _sharpness,
    }
    from torchvision.transforms import v2

    return {**for_both_versions(known), v2.RandomPhotometricDistort: _photometric_distort}


def _sometimes(operation: Callable[[Transform], Operation]) -> Converter:
    def convert(step: Transform, context: Context) -> Stage:
        return RandomApply(float(step.p), (_fixed(operation(step), step, context),))

    return convert


def _fixed(operation: Operation, step: Transform, context: Context) -> Fixed:
    rounding = rounding_of(step, context, operation[0])
    if operation[0] == "solarize" and context.held == "floats" and operation[1] > 1.0:
        raise NotCompiled("its threshold is for levels")
    if operation[0] == "solarize" and context.held != "pil" and context.exact:
        # Torch compares levels with a threshold in float32.
        operation = ("solarize", torch.tensor(operation[1], dtype=torch.float32).item())
    return Fixed(operation if rounding == "pillow" else (*operation, rounding))


def _bits(bits: Argument) -> int:
    if not isinstance(bits, int) or not 0 <= bits <= 8:
        raise NotCompiled(f"bits={bits!r}")
    return bits


def _factors(values: Argument, name: str, context: Context) -> Range:
    low, high = numbers(values, name)
    if context.held == "floats" and not max(abs(low), abs(high)) <= _MOST_FACTOR:
        raise NotCompiled(f"{name}={values!r}")
    return low, high


def _sharpness(step: Transform, context: Context) -> Stage:
    factor = step.sharpness_factor
    _factors((factor, factor), "sharpness_factor", context)
    if factor < 0:
        raise NotCompiled(f"sharpness_factor={factor!r}")
    fixed = _fixed(("sharpness", float(factor)), step, context)
    return RandomApply(float(step.p), (fixed,))


def _color_jitter(step: Transform, context: Context) -> Stage:
    changed = (name for name in _JITTERED if getattr(step, name))

    def factors(value: Argument, name: str) -> Range | None:
        return None if value is None else _factors(value, name, context)

    return ColorJitter(
        factors(step.brightness, "brightness"),
        factors(step.contrast, "contrast"),
        factors(step.saturation, "saturation"),
        factors(step.hue, "hue"),
        rounding_of(step, context, *changed),
    )


def _photometric_distort(step: Transform, context: Context) -> Stage:
    """Returns stages with the draws of Liu et al., "SSD: Single Shot MultiBox Detector" (2016)."""
    rounding = rounding_of(step, context, *_JITTERED, "channels")
    probability = float(step.p)

    def sometimes(name: str) -> Stage:
        low, high = _factors(getattr(step, name), name, context)
        if not (-0.5 if name == "hue" else 0.0) <= low <= high:
            raise NotCompiled(f"{name}={(low, high)!r}")
        factors: dict[str, Range | None] = {**dict.fromkeys(_JITTERED), name: (low, high)}
        return RandomApply(probability, (ColorJitter(**factors, rounding=rounding),))

    brightness, contrast, saturation, hue = map(sometimes, _JITTERED)
    orders = (contrast, saturation, hue), (saturation, hue, contrast)
    permutations = [(Fixed(("channels", *each)),) for each in itertools.permutations(range(3))]
    steps = (
        brightness,
        RandomChoice(orders, (1.0, 1.0)),
        RandomApply(probability, (RandomChoice(tuple(permutations), (1.0,) * 6),)),
    )
    return RandomChoice((steps,), (1.0,))


def _grayscale(step: Transform, context: Context) -> Stage:
    if step.num_output_channels not in (1, 3):
        raise NotCompiled(f"num_output_channels={step.num_output_channels!r}")
    if context.channels == 1 and step.num_output_channels == 3:
        raise NotCompiled("it makes three channels of one")
    if context.held != "pil" and step.num_output_channels == 1:
        raise NotCompiled("it makes one channel of three after the conversion")
    return _fixed(("grayscale",), step, context)


def _gaussian_blur(step: Transform, context: Context) -> Stage:
    width, height = (int(side) for side in step.kernel_size)
    rounding = blur_rounding(step, context, width, height)
    return GaussianBlur(width, height, numbers(step.sigma, "sigma"), rounding)
