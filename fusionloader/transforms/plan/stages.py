"""The typed stages of a plan, as plain values: no torch, no drawing, no pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Unpack

# What a plan does to one image, with all parameters drawn: a name and its arguments, such as
# ("crop", x, y, width, height, fill), ("brightness", 1.2) or ("invert",).
Operation: TypeAlias = "tuple[str, Unpack[tuple[Any, ...]]]"
PillowFilter = Literal["box", "bilinear", "hamming", "bicubic", "lanczos"]
TorchFilter = Literal["torch_bilinear", "torch_bicubic", "float_bilinear", "float_bicubic"]
Filter = Literal[PillowFilter, TorchFilter, "float_aliased_bilinear"]
"""Pillow's filters, and torch's antialiased ones: for uint8 tensors, with weights of 16 bits, and
for float32. These work on floats, or on levels and round their result to levels. The last is
torch's for float32 without antialias."""
Interpolation = Literal["nearest", "bilinear", "bicubic"]
Rounding = Literal[
    "pillow",
    "torch_v1",
    "torch_v2",
    "torch_unfilled",
    "torch_v1_unfused",
    "torch_v2_unfused",
    "torch_unfilled_unfused",
]
"""Whose levels an operation gives: those for PIL images, or for uint8 tensors those of
torchvision's older functions or of v2's. ``"torch_unfilled"`` is a warp of tensors without a fill,
which both do alike. Those whose names end in ``_unfused`` are of warps, where torch rounds all
products of the grid, as on AMD's processors. For blurs, which are v2's, ``"torch_v1"`` says that
torch's vectors have 8 floats, ``"torch_v2"`` 16, which depends on the processor. A drawn contrast
of v2 may also have ``"torch_v2_interleaved"``, for a tensor whose channels lie side by side in
memory."""
Range = tuple[float, float]
Color = tuple[int, int, int]
Decode = Literal["exact", "fast"]
Channels = Literal[1, 3]
Layout = Literal["planar", "kept"]
"""How a tensor lies in memory: channel by channel, or as the tensor that it was made of."""
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
    """Resizes a window of random area and aspect ratio to ``height`` x ``width`` pixels.

    One of ``filters`` is chosen for each image.
    """

    height: int
    width: int
    scale: Range
    ratio: Range
    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class ResizeShorterSide:
    """Resizes the shorter side to ``size`` pixels, the longer to at most ``max_size``, in ratio."""

    size: int
    max_size: int | None
    filter: Filter


@dataclass(frozen=True, slots=True)
class Resize:
    """Resizes the whole image to ``height`` x ``width`` pixels."""

    height: int
    width: int
    filter: Filter


@dataclass(frozen=True, slots=True)
class ResizeKeepRatio:
    """Divides both sides of the image by one ratio.

    The ratio is the smaller one of the image's height to ``height`` and its width to ``width`` for
    ``longest`` = 0, the larger one for 1, and interpolated between. With the two probabilities the
    result is scaled and stretched by factors from the ranges ``scale`` (of the inverse area if
    ``scale_is_area``) and ``aspect``. One of ``filters`` is chosen for each image.
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
    """Crops the middle ``height`` x ``width`` pixels; pads a smaller image with zeros first.

    The half of an odd number of pixels, before the window, is rounded to an even number, or down if
    ``truncated``.
    """

    height: int
    width: int
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class CropOrPad:
    """Crops ``height`` x ``width`` pixels from an image, or pads a smaller one by ``mode``.

    The window, or the image within its border, is in the middle, or anywhere if ``random``.
    """

    height: int
    width: int
    random: bool
    mode: PadMode
    fill: Color


@dataclass(frozen=True, slots=True)
class TrimBorder:
    """Crops ``border`` pixels from every side."""

    border: int


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """Crops a random ``height`` x ``width`` window, after padding with the constant ``fill``.

    ``padding`` is (left, top, right, bottom) in pixels; ``fill`` has one value per RGB channel.
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
    """Changes brightness, contrast, saturation and hue by random factors, in random order.

    Each field is the range that the factor is drawn from; ``None`` changes nothing.
    """

    brightness: Range | None
    contrast: Range | None
    saturation: Range | None
    hue: Range | None
    rounding: Rounding = "pillow"


@dataclass(frozen=True, slots=True)
class GaussianBlur:
    """Blurs by a random ``sigma`` from a range; kernel sizes are odd. All are in pixels."""

    kernel_width: int
    kernel_height: int
    sigma: Range
    rounding: Rounding = "pillow"


@dataclass(frozen=True, slots=True)
class RandomRotation:
    """Rotates by a random angle, in degrees; the result has all of the image if ``expand``."""

    degrees: Range
    interpolation: Interpolation
    expand: bool
    centre: tuple[float, float] | None
    fill: Color
    rounding: Rounding = "pillow"


@dataclass(frozen=True, slots=True)
class RandomAffine:
    """Rotates, translates, scales and shears in one operation.

    ``translate`` has maximum fractions of width and height; ``degrees`` and shears are in degrees.
    """

    degrees: Range
    translate: tuple[float, float] | None
    scale: Range | None
    shear_x: Range | None
    shear_y: Range | None
    interpolation: Interpolation
    centre: tuple[float, float] | None
    fill: Color
    rounding: Rounding = "pillow"


@dataclass(frozen=True, slots=True)
class RandomPerspective:
    """Moves the corners inwards by at most a fraction ``distortion`` of half the image."""

    distortion: float
    interpolation: Interpolation
    fill: Color
    rounding: Rounding = "pillow"


@dataclass(frozen=True, slots=True)
class Fixed:
    """An operation without random parameters, such as ``("invert",)``."""

    operation: Operation


TO_FLOATS = Fixed(("to_floats", "planar"))
"""Where levels become float32 by the conversion of a plan. What follows works on the floats:
windows, flips, constant borders, resizes by filters for floats, changes of colors, and
``Fixed(("normalize", mean, std))``. The argument is the ``Layout`` of torchvision's tensor."""


@dataclass(frozen=True, slots=True)
class Magnitude:
    """The strength of a step of a policy: ``offset + scale * level``.

    Attributes:
        levels: for the source ``"listed"`` equally likely values of the level, for ``"normal"`` its
            mean and deviation, for ``"uniform"`` its bounds.
        source: the distribution of the level.
        clip: range that the level is clipped to.
        scale: factor of the level; times a side of the image with ``relative_to``.
        offset: added to the scaled level.
        truncate: whether the scaled level loses its fraction.
        either_sign: whether the level is negated half of the time.
        relative_to: the side of the image that ``scale`` is multiplied by.
        bins: with ``relative_to``, the levels are places in ``torch.linspace(0, scale, bins)``; 0
            for none.
        bounds: range that the strength is clipped to.
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
    """An operation of a policy, applied with ``probability``.

    ``"box_blur"`` is Pillow's ``GaussianBlur`` with the magnitude as its radius,
    ``"box_blur_up_to"`` with a radius drawn between 0.1 and twice the magnitude.
    """

    op: PolicyOp
    probability: float = 1.0
    magnitude: Magnitude = Magnitude()


@dataclass(frozen=True, slots=True)
class RandomPolicy:
    """Applies one of ``policies``, with all of its steps in turn, ``repeats`` times.

    Policies are drawn by ``weights``, or equally likely without weights; each at most once if
    ``distinct``. One of ``interpolations`` is drawn for each geometric step. These steps have
    ``warp_rounding``, the others ``rounding``.
    """

    policies: tuple[tuple[PolicyStep, ...], ...]
    repeats: int
    interpolations: tuple[Interpolation, ...]
    fill: Color
    weights: tuple[float, ...] = ()
    distinct: bool = False
    rounding: Rounding = "pillow"
    warp_rounding: Rounding = "pillow"


@dataclass(frozen=True, slots=True)
class AugMix:
    """Mixes ``width`` chains of operations with the image, by weights drawn with ``alpha``.

    Chains have ``depth`` operations, or 1 to 3 if it is not positive. With ``mixing="sum"`` image
    and chains are added up at once. With ``"over"`` the chains are added up to an image, which is
    blended with the first. With ``"successive"`` one chain after the other is blended with it.
    Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and
    Uncertainty" (2020).
    """

    operations: RandomPolicy
    width: int
    depth: int
    alpha: float
    mixing: Mixing = "sum"


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """Fills ``least_boxes`` to ``most_boxes`` rectangles of the result with values or noise.

    It works on the converted result. ``values`` are the elements of one pixel in machine byte
    order. If empty, the noise is normally distributed, drawn for every element
    (``noise_per_pixel``) or once per channel. Zhong et al., "Random Erasing Data Augmentation"
    (2020).
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
    """Applies all of ``stages`` with ``probability``, or none."""

    probability: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """Applies one of ``branches``, drawn by ``weights``."""

    branches: tuple[tuple[Stage, ...], ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """Applies all of ``branches``, in random order."""

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


def makes_floats(stage: Stage) -> bool:
    """Whether this is ``TO_FLOATS``, of any layout."""
    return isinstance(stage, Fixed) and stage.operation[0] == "to_floats"


def get_branches(stage: Stage) -> tuple[tuple[Stage, ...], ...]:
    """Returns the lists of stages in a container; none for any other stage."""
    if isinstance(stage, RandomApply):
        return (stage.stages,)
    return stage.branches if isinstance(stage, RandomChoice | RandomOrder) else ()


def flat(stages: Iterable[Stage]) -> Iterator[Stage]:
    """Yields the stages, and instead of containers the stages in all of their branches."""
    for stage in stages:
        if isinstance(stage, Container):
            for branch in get_branches(stage):
                yield from flat(branch)
        else:
            yield stage


def get_rounding(stage: Stage) -> Rounding:
    """Returns whose levels a stage gives; ``"pillow"`` also if they are the same on tensors."""
    if isinstance(stage, Fixed):
        known: tuple[Rounding, ...] = ("torch_v1", "torch_v2")
        return next((each for each in known if stage.operation[-1] == each), "pillow")
    rounding: Rounding = getattr(stage, "rounding", "pillow")
    return rounding


_WITHOUT_DRAWS = (CenterCrop, Fixed, Resize, ResizeShorterSide, TrimBorder)


def is_random(stages: Iterable[Stage]) -> bool:
    """Whether any of the stages draws parameters; stages not known here count as random."""
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
    """The last native stage, or ``TO_FLOATS``: maps each level of each channel through a table.

    ``table`` holds ``channels * 256`` elements of ``element_type`` in machine byte order, channel
    by channel. It is made by running the user's own conversion transforms on the 256 levels, so it
    is right whatever their arithmetic. The result is channels x height x width.
    """

    element_type: ElementType
    table: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ImageKind:
    """What is known of all images before the first stage.

    ``channels`` is 3 (RGB) or 1 (grey). ``height`` and ``width`` are in pixels; ``None`` if images
    differ.
    """

    channels: Channels = 3
    height: int | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to an image natively: it is decoded if encoded, transformed and converted.

    Attributes:
        stages: transformations, in order.
        convert: ``None`` if Python code follows: the native part then ends with 8-bit pixels,
            height x width x channels.
        height: height of the result in pixels; ``None`` if it differs from image to image.
        width: width of the result, likewise.
        decode: ``"exact"`` (Pillow's pixels) or ``"fast"``.
        channels: channels of the images.
        result_channels: channels of the result: 1 also if a stage makes grey of three channels.
        strict: whether a file that is damaged behind the rows that its crop needs is an error.
        tensor_from: number of stages before the image is a tensor in torchvision.
        copied_from: number of stages before the last conversion that copies this tensor: colors may
            depend on how it lies in memory. Both are 0 if no stages follow.
    """

    stages: tuple[Stage, ...]
    convert: Convert | None
    height: int | None
    width: int | None
    decode: Decode = "exact"
    channels: Channels = 3
    result_channels: Channels = 3
    strict: bool = True
    tensor_from: int = 0
    copied_from: int = 0

    @property
    def works_on_floats(self) -> bool:
        """Whether stages follow one like ``TO_FLOATS``."""
        return any(map(makes_floats, self.stages))


@dataclass(frozen=True, slots=True)
class SplitPlan(Plan):
    """A plan with a fixed result size whose last stages a device runs, with the conversion.

    A row has the pixels before these stages, height x width x channels, and from a multiple of 16
    bytes on the program of what was drawn for them.

    Attributes:
        device_stages: number of stages that the device runs.
        program_bytes: bytes of a program, at most; a multiple of 16.
        work_bytes: bytes of device memory that a program works in, at most; a multiple of 16.
    """

    device_stages: int = 0
    program_bytes: int = 0
    work_bytes: int = 0

    @property
    def program_offset(self) -> int:
        """Where in a row the program begins, in bytes."""
        assert self.height is not None and self.width is not None
        return -(-self.height * self.width * self.channels // 16) * 16

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.program_offset + self.program_bytes
