"""Converts timm's RandAugment, AutoAugment and AugMix to stages, operation by operation.

An operation of timm is a function with one argument. Another function computes the argument from a
magnitude, in tenths. timm has to define both functions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fusionloader.transforms.plan.arguments import (
    Context,
    Converter,
    NotCompiled,
    Transform,
    color,
    interpolation_name,
)
from fusionloader.transforms.plan.stages import (
    AugMix,
    Color,
    Interpolation,
    Magnitude,
    Mixing,
    PolicyOp,
    PolicyStep,
    RandomPolicy,
    Stage,
)
from fusionloader.transforms.plan.timm.names import timm_name

_INFINITE = float("inf")
_OPS: dict[str, PolicyOp] = {
    "shear_x": "skew_x",
    "shear_y": "skew_y",
    "translate_x_abs": "shift_x",
    "translate_y_abs": "shift_y",
    "translate_x_rel": "shift_x",
    "translate_y_rel": "shift_y",
    "rotate": "rotate",
    "auto_contrast": "autocontrast",
    "invert": "invert",
    "equalize": "equalize",
    "solarize": "solarize",
    "solarize_add": "solarize_add",
    "posterize": "posterize",
    "contrast": "contrast",
    "color": "saturation",
    "desaturate": "saturation",
    "brightness": "brightness",
    "sharpness": "sharpness",
    "gaussian_blur": "box_blur",
    "gaussian_blur_rand": "box_blur_up_to",
}
_WITHOUT_ARGUMENT = ("autocontrast", "invert", "equalize")
# The argument as a function of the magnitude, for timm's functions that depend on nothing else.
_ARGUMENTS: dict[str, Magnitude] = {
    "_rotate_level_to_arg": Magnitude(scale=30.0, either_sign=True),
    "_enhance_level_to_arg": Magnitude(scale=1.8, offset=0.1),
    "_enhance_increasing_level_to_arg": Magnitude(
        scale=0.9, offset=1.0, either_sign=True, bounds=(0.1, _INFINITE)
    ),
    "_shear_level_to_arg": Magnitude(scale=0.3, either_sign=True),
    "_posterize_level_to_arg": Magnitude(scale=4.0, truncate=True),
    "_posterize_increasing_level_to_arg": Magnitude(scale=-4.0, offset=4.0, truncate=True),
    "_posterize_original_level_to_arg": Magnitude(scale=4.0, offset=4.0, truncate=True),
    "_solarize_level_to_arg": Magnitude(scale=256.0, truncate=True, bounds=(0.0, 256.0)),
    "_solarize_increasing_level_to_arg": Magnitude(
        scale=-256.0, offset=256.0, truncate=True, bounds=(0.0, 256.0)
    ),
    "_solarize_add_level_to_arg": Magnitude(scale=110.0, truncate=True, bounds=(0.0, 128.0)),
}


def converters() -> dict[type, Converter]:
    known = {
        "RandAugment": _rand_augment,
        "AutoAugment": _auto_augment,
        "AugMixAugment": _augmix,
        "AugmentOp": _augment_op,
    }
    return {timm_name("auto_augment", name): make for name, make in known.items()}


def _rand_augment(step: Transform, context: Context) -> Stage:
    made = _policy([[op] for op in step.ops], int(step.num_layers), context)
    if step.choice_weights is None:
        return made
    weights = tuple(float(weight) for weight in step.choice_weights)
    possible = sum(weight > 0 for weight in weights)
    if len(weights) != len(made.policies) or min(weights) < 0 or possible < made.repeats:
        raise NotCompiled(f"choice_weights={step.choice_weights!r} for {made.repeats} layers")
    return replace(made, weights=weights, distinct=True)


def _auto_augment(step: Transform, context: Context) -> Stage:
    return _policy(step.policy, 1, context)


def _augment_op(step: Transform, context: Context) -> Stage:
    return _policy([[step]], 1, context)


def _augmix(step: Transform, context: Context) -> Stage:
    operations = _policy([[op] for op in step.ops], 1, context)
    mixing: Mixing = "successive" if step.blended else "over"
    width, depth, alpha = int(step.width), int(step.depth), float(step.alpha)
    if width < 1 or not alpha > 0:
        raise NotCompiled(f"width={width}, alpha={alpha}")
    return AugMix(operations, width, depth, alpha, mixing)


def _policy(
    policies: Sequence[Sequence[Transform]], repeats: int, context: Context
) -> RandomPolicy:
    context.require_pil()
    operations = [op for policy in policies for op in policy]
    for op in operations:
        if type(op) is not timm_name("auto_augment", "AugmentOp") or "__call__" in op.__dict__:
            raise NotCompiled(f"it contains a custom {type(op).__name__}")
    made = tuple(tuple(_policy_step(op) for op in policy) for policy in policies)
    options = {_warp_options(op, context) for op in operations}
    if len(options) != 1:
        raise NotCompiled("its operations differ in fill or interpolation")
    ((interpolations, fill),) = options
    return RandomPolicy(made, repeats, interpolations, fill)


def _warp_options(op: Transform, context: Context) -> tuple[tuple[Interpolation, ...], Color]:
    known = {"fillcolor", "resample"}
    if set(op.kwargs) != known:
        raise NotCompiled(f"{op.name} with {sorted(set(op.kwargs) ^ known)}")
    given = op.kwargs["resample"]
    modes = given if isinstance(given, (list, tuple)) else [given]
    names = tuple(interpolation_name(int(mode)) for mode in modes)
    return names, color(op.kwargs["fillcolor"], context.channels)


def _policy_step(op: Transform) -> PolicyStep:
    name = _name_in_timm(op.aug_fn)
    if name not in _OPS:
        raise NotCompiled(f"operation {op.name!r} is not known")
    kind = _OPS[name]
    probability = float(op.prob)
    if (op.level_fn is None) != (kind in _WITHOUT_ARGUMENT):
        raise NotCompiled(f"the magnitude of {op.name!r} is not as timm makes it")
    if op.level_fn is None:
        return PolicyStep(kind, probability)
    magnitude = _argument(op)
    if name == "desaturate":
        magnitude = _from_one(magnitude)
    elif name == "posterize":
        # 0 bits give black, as timm means it, although Pillow 13.0 and later raise.
        magnitude = replace(magnitude, bounds=(0.0, 8.0))
    elif name.endswith("_rel"):
        magnitude = replace(magnitude, relative_to="width" if kind == "shift_x" else "height")
    return PolicyStep(kind, probability, replace(magnitude, **_levels(op)))


def _argument(op: Transform) -> Magnitude:
    """Returns the operation's argument as a function of the level; ``_levels`` adds the levels."""
    level_fn, hparams = op.level_fn, op.hparams
    name = _name_in_timm(level_fn)
    if name in _ARGUMENTS:
        return _ARGUMENTS[name]
    if name == "_translate_abs_level_to_arg":
        return Magnitude(scale=float(hparams["translate_const"]), either_sign=True)
    if name == "_translate_rel_level_to_arg":
        return Magnitude(scale=float(hparams.get("translate_pct", 0.45)), either_sign=True)
    if isinstance(level_fn, functools.partial) and not level_fn.args:
        name, given = _name_in_timm(level_fn.func), level_fn.keywords
    else:
        given = {}
    if name != "_minmax_level_to_arg" or not set(given) <= {"min_val", "max_val", "clamp"}:
        raise NotCompiled(f"the magnitude of {op.name!r} is not as timm makes it")
    low, high = float(given.get("min_val", 0.0)), float(given.get("max_val", 1.0))
    bounds = (low, high) if given.get("clamp", True) else (-_INFINITE, _INFINITE)
    return Magnitude(scale=high - low, offset=low, bounds=bounds)


def _from_one(magnitude: Magnitude) -> Magnitude:
    """Returns one minus the argument, within 0 and 1, as ``desaturate`` uses it."""
    low, high = (1.0 - bound for bound in reversed(magnitude.bounds))
    return replace(
        magnitude,
        scale=-magnitude.scale,
        offset=1.0 - magnitude.offset,
        bounds=(max(low, 0.0), min(high, 1.0)),
    )


def _levels(op: Transform) -> dict[str, Any]:
    """Returns the fields of the magnitude that say which levels are drawn."""
    level, deviation = float(op.magnitude), float(op.magnitude_std)
    most = float(op.magnitude_max or 10.0)
    if not (math.isfinite(level) and most > 0):
        raise NotCompiled(f"magnitude={op.magnitude}, magnitude_max={op.magnitude_max}")
    if not deviation > 0:
        return {"levels": (max(0.0, min(level, most)) / 10.0,)}
    clip = (0.0, most / 10.0)
    if deviation == _INFINITE:
        return {"source": "uniform", "levels": (0.0, level / 10.0), "clip": clip}
    return {"source": "normal", "levels": (level / 10.0, deviation / 10.0), "clip": clip}


def _name_in_timm(function: object) -> str:
    """Returns the name of a function of timm, or an empty string for any other."""
    name = getattr(function, "__name__", "")
    defined = getattr(function, "__module__", "") == "timm.data.auto_augment"
    return name if defined and timm_name("auto_augment", name) is function else ""
