"""The stages of a plan that draw operations from augmentation policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusionloader.transforms.plan.values import Color, Interpolation, Range

PolicyOp = Literal[
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "skew_x",
    "skew_y",
    "shift_x",
    "shift_y",
    "rotate",
    "brightness",
    "contrast",
    "saturation",
    "sharpness",
    "posterize",
    "solarize",
    "solarize_add",
    "invert",
    "autocontrast",
    "equalize",
    "cutout",
    "hflip",
    "box_blur",
    "box_blur_up_to",
]
Mixing = Literal["sum", "over", "successive"]


@dataclass(frozen=True, slots=True)
class Magnitude:
    """How strong a step of a policy is: ``offset + scale * level``.

    ``levels`` are equally likely values of the level (source ``"listed"``), its mean and deviation
    (``"normal"``) or its bounds (``"uniform"``); it is clipped to ``clip``, and negated half of the
    time where ``either_sign``. ``scale * level`` loses its fraction where ``truncate``; the sum is
    clipped to ``bounds``. Relative to ``"width"`` or ``"height"``, the scale is times that side of
    the image; with ``bins`` the levels are then places in ``torch.linspace(0, scale, bins)``.
    """

    levels: tuple[float, ...] = (0.0,)
    source: Literal["listed", "normal", "uniform"] = "listed"
    clip: Range = (float("-inf"), float("inf"))
    scale: float = 1.0
    offset: float = 0.0
    truncate: bool = False
    either_sign: bool = False
    relative_to: Literal["nothing", "width", "height"] = "nothing"
    bins: int = 0
    bounds: Range = (float("-inf"), float("inf"))


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """An operation of a policy, done with ``probability``.

    ``"box_blur"`` is Pillow's ``GaussianBlur`` with the magnitude as its radius,
    ``"box_blur_up_to"`` with a radius drawn between 0.1 and twice the magnitude.
    """

    op: PolicyOp
    probability: float = 1.0
    magnitude: Magnitude = Magnitude()


@dataclass(frozen=True, slots=True)
class RandomPolicy:
    """``repeats`` times one of ``policies``, of which the steps follow each other.

    Policies are chosen by ``weights``, or equally likely where there are none, and each at most
    once if ``distinct``. One of ``interpolations`` is chosen for each geometric step.
    """

    policies: tuple[tuple[PolicyStep, ...], ...]
    repeats: int
    interpolations: tuple[Interpolation, ...]
    fill: Color
    weights: tuple[float, ...] = ()
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class AugMix:
    """``width`` chains of operations mixed with the image, by weights drawn with ``alpha``.

    Chains are ``depth`` long, or 1 to 3 where that is not positive. With ``mixing`` ``"sum"`` image
    and chains are added up at once, with ``"over"`` the sum of the chains becomes an image and is
    blended over the first, with ``"successive"`` chain after chain is. Hendrycks et al., "AugMix: A
    Simple Data Processing Method to Improve Robustness and Uncertainty" (2020).
    """

    operations: RandomPolicy
    width: int
    depth: int
    alpha: float
    mixing: Mixing = "sum"
