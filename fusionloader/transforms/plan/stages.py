"""The typed stages of a plan, as plain values: no torch, no drawing, no pixels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Unpack

# What a plan does to one image once all random parameters are drawn: a name and its arguments, such
# as ("crop", x, y, width, height, fill), ("brightness", 1.2) or ("invert",).
Operation: TypeAlias = "tuple[str, Unpack[tuple[Any, ...]]]"
Filter = Literal[
    "box", "bilinear", "hamming", "bicubic", "lanczos", "torch_bilinear", "torch_bicubic"
]
"""Pillow's filters, and torch's antialiased ones for uint8 tensors, whose weights have 16 bits."""
Interpolation = Literal["nearest", "bilinear", "bicubic"]
Range = tuple[float, float]
Color = tuple[int, int, int]
Decode = Literal["exact", "fast"]
Channels = Literal[1, 3]
PadMode = Literal["constant", "edge", "reflect", "symmetric"]
ElementType = Literal["uint8", "float16", "bfloat16", "float32", "float64"]
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
class RandomResizedCrop:
    """A random window of random area and aspect ratio, resized to ``height`` x ``width`` pixels.

    One of ``filters`` is chosen for each image.
    """

    height: int
    width: int
    scale: Range
    ratio: Range
    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class ResizeShorterSide:
    """The shorter side becomes ``size`` pixels, the longer at most ``max_size``, ratio kept."""

    size: int
    max_size: int | None
    filter: Filter


@dataclass(frozen=True, slots=True)
class Resize:
    """The whole image becomes ``height`` x ``width`` pixels."""

    height: int
    width: int
    filter: Filter


@dataclass(frozen=True, slots=True)
class ResizeKeepRatio:
    """The image divided by a ratio between those of its sides to ``height`` x ``width`` pixels.

    That is the smaller one for ``longest`` = 0 and the larger one for 1. With a probability each
    the result is scaled and stretched, by factors from the ranges ``scale`` (of the inverse area
    if ``scale_is_area``) and ``aspect``. One of ``filters`` is chosen for each image.
    """

    height: int
    width: int
    longest: float
    filters: tuple[Filter, ...]
    scale_probability: float = 0.0
    scale: Range = (1.0, 1.0)
    scale_is_area: bool = False
    aspect_probability: float = 0.0
    aspect: Range = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle ``height`` x ``width`` pixels; a smaller image is padded with zeros first."""

    height: int
    width: int


@dataclass(frozen=True, slots=True)
class CropOrPad:
    """``height`` x ``width`` pixels: a window, or all of a smaller image and a border of ``mode``.

    In the middle, or anywhere if ``random``.
    """

    height: int
    width: int
    random: bool
    mode: PadMode
    fill: Color


@dataclass(frozen=True, slots=True)
class TrimBorder:
    """All but ``border`` pixels on every side."""

    border: int


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A random ``height`` x ``width`` window, after padding with the constant ``fill``.

    ``padding`` is (left, top, right, bottom) in pixels; ``fill`` one value per RGB channel.
    """

    height: int
    width: int
    padding: tuple[int, int, int, int]
    pad_if_needed: bool
    fill: Color


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Mirrors left and right with ``probability``."""

    probability: float


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip:
    """Mirrors top and bottom with ``probability``."""

    probability: float


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue by random factors, in random order.

    Each is a range that the factor is drawn from, or ``None`` where it is left alone.
    """

    brightness: Range | None
    contrast: Range | None
    saturation: Range | None
    hue: Range | None


@dataclass(frozen=True, slots=True)
class GaussianBlur:
    """A blur of random strength: kernel sizes are odd, ``sigma`` a range, all in pixels."""

    kernel_width: int
    kernel_height: int
    sigma: Range


@dataclass(frozen=True, slots=True)
class RandomRotation:
    """A rotation by a random angle, in degrees; the result holds all of the image if ``expand``."""

    degrees: Range
    interpolation: Interpolation
    expand: bool
    centre: tuple[float, float] | None
    fill: Color


@dataclass(frozen=True, slots=True)
class RandomAffine:
    """Rotation, translation, scaling and shear in one.

    ``translate`` is the largest part of width and height; ``degrees`` and shears are in degrees.
    """

    degrees: Range
    translate: tuple[float, float] | None
    scale: Range | None
    shear_x: Range | None
    shear_y: Range | None
    interpolation: Interpolation
    centre: tuple[float, float] | None
    fill: Color


@dataclass(frozen=True, slots=True)
class RandomPerspective:
    """The corners move inwards by at most ``distortion`` of half the image."""

    distortion: float
    interpolation: Interpolation
    fill: Color


@dataclass(frozen=True, slots=True)
class Fixed:
    """An operation without random parameters, as it is drawn: ``("invert",)``."""

    operation: Operation


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


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """Rectangles of the converted result filled with values or noise.

    ``values`` are the elements of one pixel in machine byte order; empty for normally distributed
    noise, drawn for every element (``noise_per_pixel``) or once per channel. ``least_boxes`` to
    ``most_boxes`` rectangles. Zhong et al., "Random Erasing Data Augmentation" (2020).
    """

    probability: float
    scale: Range
    ratio: Range
    values: bytes
    noise_per_pixel: bool = True
    least_boxes: int = 1
    most_boxes: int = 1


@dataclass(frozen=True, slots=True)
class RandomApply:
    """All of ``stages`` with ``probability``, or none."""

    probability: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """One of ``branches``, by ``weights``."""

    branches: tuple[tuple[Stage, ...], ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """All of ``branches``, in random order."""

    branches: tuple[tuple[Stage, ...], ...]


Container = RandomApply | RandomChoice | RandomOrder
Stage = (
    RandomResizedCrop
    | ResizeShorterSide
    | Resize
    | ResizeKeepRatio
    | CenterCrop
    | CropOrPad
    | TrimBorder
    | RandomCrop
    | RandomHorizontalFlip
    | RandomVerticalFlip
    | ColorJitter
    | GaussianBlur
    | RandomRotation
    | RandomAffine
    | RandomPerspective
    | Fixed
    | RandomPolicy
    | AugMix
    | RandomErasing
    | Container
)


def branches_of(stage: Stage) -> tuple[tuple[Stage, ...], ...]:
    """Returns the lists of stages that a container holds, none for any other stage."""
    if isinstance(stage, RandomApply):
        return (stage.stages,)
    return stage.branches if isinstance(stage, RandomChoice | RandomOrder) else ()


_WITHOUT_DRAWS = (CenterCrop, Fixed, Resize, ResizeShorterSide, TrimBorder)


def is_random(stages: Iterable[Stage]) -> bool:
    """Whether any of the stages draws something; stages not known here are taken to."""
    return not all(map(_is_determined, stages))


def _is_determined(stage: Stage) -> bool:
    if isinstance(stage, CropOrPad):
        return not stage.random
    if isinstance(stage, ResizeKeepRatio):
        probabilities = (stage.scale_probability, stage.aspect_probability)
        return len(stage.filters) == 1 and not any(probabilities)
    return isinstance(stage, _WITHOUT_DRAWS)


@dataclass(frozen=True, slots=True)
class Convert:
    """The last native stage: every 8-bit level of every channel mapped through a table.

    ``table`` holds ``channels * 256`` elements of ``element_type`` in machine byte order, channel
    by channel. It is made by running the user's own conversion transforms on the 256 levels, so it
    is right by construction, whatever their arithmetic. The result is channels x height x width.
    """

    element_type: ElementType
    table: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ImageKind:
    """What is known of all images before the first stage.

    ``channels`` is 3 (RGB) or 1 (grey); ``height`` and ``width`` in pixels, ``None`` where images
    differ.
    """

    channels: Channels = 3
    height: int | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to an image natively: decode to RGB where encoded, ``stages``, ``convert``.

    ``convert`` is ``None`` when Python code follows: the native part then ends with 8-bit pixels,
    height x width x channels. ``height`` and ``width`` are those of the result, ``None`` when they
    differ from image to image. ``decode`` is ``"exact"`` (Pillow's pixels) or ``"fast"``.
    ``channels`` are those of the images, ``result_channels`` those of the result, which is grey (1)
    also where three channels were made one. If not ``strict``, a file may be damaged behind the
    rows that its crop needs.
    """

    stages: tuple[Stage, ...]
    convert: Convert | None
    height: int | None
    width: int | None
    decode: Decode = "exact"
    channels: Channels = 3
    result_channels: Channels = 3
    strict: bool = True
