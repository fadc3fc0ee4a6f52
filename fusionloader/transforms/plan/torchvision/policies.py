"""Converts torchvision's augmentation policies to stages: RandAugment, AutoAugment and similar.

The user's transform gives the operations and their magnitudes; this module has no copy of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fusionloader.transforms.plan.arguments import (
    Context,
    Converter,
    NotCompiled,
    Transform,
    color,
    for_both_versions,
    interpolation_name,
)
from fusionloader.transforms.plan.stages import (
    AugMix,
    Magnitude,
    PolicyOp,
    PolicyStep,
    RandomPolicy,
    Stage,
)
from fusionloader.transforms.plan.torchvision.on_tensors import rounding_of, warp_rounding

if TYPE_CHECKING:
    import torch

_OPS: dict[str, PolicyOp] = {
    "Identity": "identity",
    "ShearX": "shear_x",
    "ShearY": "shear_y",
    "TranslateX": "translate_x",
    "TranslateY": "translate_y",
    "Rotate": "rotate",
    "Brightness": "brightness",
    "Color": "saturation",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
    "Invert": "invert",
}
_ENHANCING = ("brightness", "saturation", "contrast", "sharpness")
# Two image sizes, to find out which magnitudes depend on the size; their sides share no factor.
_SIZES = ((997, 601), (1009, 607))

# By operation: its magnitudes (`None` where it has none), and whether they get a random sign.
Space = dict[str, tuple["torch.Tensor | None", bool]]


def converters() -> dict[type, Converter]:
    known = {
        "RandAugment": _rand_augment,
        "AutoAugment": _auto_augment,
        "TrivialAugmentWide": _trivial_augment,
        "AugMix": _augmix,
    }
    return for_both_versions(known)


def rand_augment_policy(num_ops: int, magnitude: int, bins: int) -> RandomPolicy:
    """Returns the stage of torchvision's RandAugment; other arguments have their defaults."""
    from torchvision.transforms import RandAugment

    return _rand_augment(RandAugment(num_ops, magnitude, bins), Context(3, "pil"))


def _rand_augment(step: Transform, context: Context) -> RandomPolicy:
    space = _spaces(step, step.num_magnitude_bins)
    policies = tuple(
        (_policy_step(name, space, lambda count: [step.magnitude]),) for name in space[0]
    )
    return _policy(step, context, policies, step.num_ops)


def _trivial_augment(step: Transform, context: Context) -> Stage:
    space = _spaces(step, step.num_magnitude_bins)
    policies = tuple((_policy_step(name, space, range),) for name in space[0])
    return _policy(step, context, policies, 1)


def _auto_augment(step: Transform, context: Context) -> Stage:
    space = _spaces(step, 10)
    policies = getattr(step, "policies", None) or step._policies
    made = tuple(
        tuple(
            _policy_step(name, space, functools.partial(_only, place), float(probability))
            for name, probability, place in policy
        )
        for policy in policies
    )
    return _policy(step, context, made, 1)


def _only(place: int, count: int) -> list[int]:
    return [place]


def _augmix(step: Transform, context: Context) -> Stage:
    space = _spaces(step, 10)
    names = list(space[0])
    policies = tuple(
        (_policy_step(name, space, lambda count: range(step.severity)),) for name in names
    )
    operations = _policy(step, context, policies, 1)
    return AugMix(operations, int(step.mixture_width), int(step.chain_depth), float(step.alpha))


def _policy(
    step: Transform, context: Context, policies: tuple[tuple[PolicyStep, ...], ...], repeats: int
) -> RandomPolicy:
    names = {each.op for policy in policies for each in policy}
    of_warps = warp_rounding(step, context)
    return RandomPolicy(
        policies,
        repeats,
        (interpolation_name(step.interpolation),),
        color(step.fill, context.channels),
        rounding=rounding_of(step, context, *names),
        warp_rounding=of_warps,
    )


def _spaces(step: Transform, bins: int) -> list[Space]:
    """Returns the transform's operations for images of both ``_SIZES``."""
    return [_space(step, bins, height, width) for height, width in _SIZES]


def _space(step: Transform, bins: int, height: int, width: int) -> Space:
    make_space = getattr(step, "_augmentation_space", None)
    if make_space is not None:
        from torchvision.transforms import TrivialAugmentWide

        arguments = (bins,) if type(step) is TrivialAugmentWide else (bins, (height, width))
        return dict(make_space(*arguments))
    table = step._AUGMENTATION_SPACE
    if getattr(step, "all_ops", True) is False:
        table = step._PARTIAL_AUGMENTATION_SPACE
    return {name: (make(bins, height, width), signed) for name, (make, signed) in table.items()}


def _policy_step(
    name: str, spaces: list[Space], places: Callable[[int], Iterable[int]], probability: float = 1.0
) -> PolicyStep:
    """Returns the step; ``places(count)`` returns indices into its ``count`` magnitudes."""
    if name not in _OPS:
        raise NotCompiled(f"operation {name!r} is not known")
    op = _OPS[name]
    (magnitudes, signed), (others, _) = (space[name] for space in spaces)
    if magnitudes is None or others is None or magnitudes.ndim == 0:
        return PolicyStep(op, probability)
    if not magnitudes.equal(others):
        return PolicyStep(op, probability, _relative(op, magnitudes, others, signed, places))
    levels = tuple(float(magnitudes[place]) for place in places(len(magnitudes)))
    scale, offset = 1.0, 0.0
    if op in _ENHANCING:
        offset = 1.0
    if op == "solarize" and float(magnitudes.max()) <= 1.0:
        scale = 255.0  # v2 has fractions of the range
    return PolicyStep(
        op,
        probability,
        Magnitude(levels=levels, scale=scale, offset=offset, either_sign=bool(signed)),
    )


def _relative(
    op: PolicyOp,
    magnitudes: torch.Tensor,
    others: torch.Tensor,
    signed: bool,
    places: Callable[[int], Iterable[int]],
) -> Magnitude:
    """Returns a magnitude relative to the image's size, as of torchvision's translations."""
    import torch

    side = 1 if op == "translate_x" else 0
    bins = len(magnitudes)
    for part in (150.0 / 331.0, 1.0 / 3.0):
        made = [torch.linspace(0.0, part * size[side], bins) for size in _SIZES]
        if magnitudes.equal(made[0]) and others.equal(made[1]):
            break
    else:
        raise NotCompiled(f"how {op} depends on the image's size is not known")
    return Magnitude(
        levels=tuple(float(place) for place in places(bins)),
        scale=part,
        either_sign=signed,
        relative_to="width" if side == 1 else "height",
        bins=bins,
    )
