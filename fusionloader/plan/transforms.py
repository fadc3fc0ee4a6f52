"""torchvision's transforms, v1 and v2, to the stages of a plan.

A transform is compiled only when its class is exactly one that is known; a subclass may do
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusionloader.plan.stages import (
    CenterCrop,
    Convert,
    ElementType,
    Filter,
    ImageKind,
    Plan,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ResizeShorterSide,
    Stage,
)

_FILTERS: dict[str, Filter] = {
    "box": "box",
    "bilinear": "bilinear",
    "hamming": "hamming",
    "bicubic": "bicubic",
    "lanczos": "lanczos",
}
_ELEMENTS: dict[torch.dtype, ElementType] = {
    torch.uint8: "uint8",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}


_ANY_RGB = ImageKind()


class NotCompiled(Exception):
    """A transform stays in Python; the message says why."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of ``explain()``: a transform, and why it is in Python (empty: it is native)."""

    stage: str
    why: str


@dataclass(frozen=True, slots=True)
class CompiledTransform:
    """A transform taken apart.

    ``tail`` gets the PIL image that the native stages make and returns what the whole transform
    would; ``None`` when nothing is left to do in Python.
    """

    plan: Plan
    tail: Callable[[Any], Any] | None
    notes: tuple[Note, ...]


class Tail:
    """The transforms that run in Python, one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        """Returns the transformed image."""
        for transform in self.transforms:
            image = transform(image)
        return image


def compile_transform(
    transform: Any, decode: Any = "exact", images: ImageKind = _ANY_RGB
) -> CompiledTransform:
    """Returns the plan of a torchvision transform and what is left of it for Python.

    Args:
        transform: callable on a PIL image.
        decode: ``"exact"`` or ``"fast"``, as in ``Plan``.
        images: what is known of the images that it will get.
    """
    steps = list(_flatten(transform))
    stages: list[Stage] = []
    conversions: list[Any] = []
    notes: list[Note] = []
    first_conversion = None
    for place, step in enumerate(steps):
        try:
            if _is_conversion(step):
                if first_conversion is None:
                    first_conversion = (place, len(stages))
                conversions.append(step)
            else:
                stages.append(_stage(step, first_conversion is not None, images.channels))
        except NotCompiled as why:
            rest = [Note(_text(s), str(why) if s is step else "follows it") for s in steps[place:]]
            return _with_tail(steps, place, stages, first_conversion, notes, rest, decode, images)
        notes.append(Note(_text(step), ""))
    if first_conversion is None:
        plan = _plan(stages, None, decode, images)
        return CompiledTransform(plan, None, tuple(notes))
    try:
        convert = _table(conversions, images.channels)
    except NotCompiled as why:
        place = first_conversion[0]
        rest = [Note(_text(s), str(why)) for s in steps[place:]]
        return _with_tail(steps, place, stages, first_conversion, notes, rest, decode, images)
    return CompiledTransform(_plan(stages, convert, decode, images), None, tuple(notes))


def _with_tail(
    steps: list[Any],
    place: int,
    stages: list[Stage],
    first_conversion: tuple[int, int] | None,
    notes: list[Note],
    rest: list[Note],
    decode: Any,
    images: ImageKind,
) -> CompiledTransform:
    """Cuts before the first conversion, so that the tail begins with a PIL image."""
    if first_conversion is not None:
        place, kept = first_conversion
        stages = stages[:kept]
        moved = [Note(note.stage, "what follows runs in Python") for note in notes[place:]]
        notes, rest = notes[:place], moved + [n for n in rest if n not in moved]
        rest = rest[: len(steps) - place]
    plan = _plan(stages, None, decode, images)
    return CompiledTransform(plan, Tail(steps[place:]), (*notes, *rest))


def _plan(stages: list[Stage], convert: Convert | None, decode: Any, images: ImageKind) -> Plan:
    height, width = _size(stages, images)
    return Plan(tuple(stages), convert, height, width, decode, images.channels)


def _flatten(transform: Any) -> Any:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if type(transform) in (v1.Compose, v2.Compose):
        for step in transform.transforms:
            yield from _flatten(step)
    elif type(transform) is torch.nn.Sequential:
        for step in transform:
            yield from _flatten(step)
    else:
        yield transform


def _is_conversion(step: Any) -> bool:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    return type(step) in (
        v1.ToTensor,
        v1.PILToTensor,
        v1.ConvertImageDtype,
        v1.Normalize,
        v2.ToTensor,
        v2.PILToTensor,
        v2.ToImage,
        v2.ToDtype,
        v2.ConvertImageDtype,
        v2.Normalize,
        v2.ToPureTensor,
    )


def _stage(step: Any, on_tensor: bool, channels: int) -> Stage:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    kind = type(step)
    if "forward" in vars(step) or "get_params" in vars(step) or "make_params" in vars(step):
        raise NotCompiled("its methods were replaced")
    if kind in (v1.RandomHorizontalFlip, v2.RandomHorizontalFlip):
        return RandomHorizontalFlip(float(step.p))
    if kind in (v1.RandomVerticalFlip, v2.RandomVerticalFlip):
        return RandomVerticalFlip(float(step.p))
    if kind in (v1.RandomCrop, v2.RandomCrop):
        crop = _random_crop(step, channels)
        if on_tensor and (any(crop.padding) or crop.pad_if_needed):
            raise NotCompiled("padding after the conversion to a tensor is not compiled")
        return crop
    known = (v1.RandomResizedCrop, v2.RandomResizedCrop, v1.Resize, v2.Resize)
    if kind in known and on_tensor:
        raise NotCompiled("torchvision rounds otherwise on tensors: put it before the conversion")
    if kind in (v1.RandomResizedCrop, v2.RandomResizedCrop):
        height, width = _pair(step.size)
        scale, ratio = tuple(map(float, step.scale)), tuple(map(float, step.ratio))
        if not (0 < scale[0] <= scale[1] and 0 < ratio[0] <= ratio[1]):
            raise NotCompiled("its scale or ratio is not an increasing pair of positive numbers")
        filter = _filter(step.interpolation)
        return RandomResizedCrop(height, width, scale, ratio, filter)  # type: ignore[arg-type]
    if kind in (v1.Resize, v2.Resize):
        return _resize(step)
    if kind in (v1.CenterCrop, v2.CenterCrop):
        if on_tensor:
            raise NotCompiled("it may pad, and on tensors pads what is converted already")
        return CenterCrop(*_pair(step.size))
    raise NotCompiled("not a transform that can be compiled")


def _random_crop(step: Any, channels: int) -> RandomCrop:
    from torchvision.transforms import v2

    if (step.padding is not None or step.pad_if_needed) and step.padding_mode != "constant":
        raise NotCompiled(f"padding_mode={step.padding_mode!r}")
    padding = step.padding
    if padding is None:
        left = top = right = bottom = 0
    elif type(step) is v2.RandomCrop:
        left, right, top, bottom = padding
    elif isinstance(padding, int):
        left = top = right = bottom = padding
    elif len(padding) == 1:
        left = top = right = bottom = padding[0]
    elif len(padding) == 2:
        left, top = right, bottom = padding
    else:
        left, top, right, bottom = padding
    if min(left, top, right, bottom) < 0:
        raise NotCompiled("negative padding")
    height, width = _pair(step.size)
    fill = _fill(step.fill, channels)
    return RandomCrop(height, width, (left, top, right, bottom), bool(step.pad_if_needed), fill)


def _fill(fill: Any, channels: int) -> tuple[int, int, int]:
    if fill is None:
        fill = 0
    values = [fill] if isinstance(fill, (int, float)) else fill
    if not isinstance(values, (list, tuple)) or len(values) not in (1, channels):
        raise NotCompiled(f"fill={fill!r}")
    values = list(values) * (3 if len(values) == 1 else 1)
    if any(value != int(value) or not 0 <= value <= 255 for value in values):
        raise NotCompiled(f"fill={fill!r}")
    red, green, blue = (int(value) for value in values)
    return red, green, blue


def _resize(step: Any) -> Stage:
    filter = _filter(step.interpolation)
    size = step.size
    if size is None:
        raise NotCompiled("size=None")
    sizes = [size] if isinstance(size, int) else list(size)
    if not all(isinstance(s, int) and s > 0 for s in sizes):
        raise NotCompiled(f"size={size!r}")
    if len(sizes) == 1:
        if step.max_size is not None and step.max_size <= sizes[0]:
            raise NotCompiled("max_size is not larger than size")
        return ResizeShorterSide(sizes[0], step.max_size, filter)
    if step.max_size is not None:
        raise NotCompiled("max_size with a size of two")
    return Resize(sizes[0], sizes[1], filter)


def _pair(size: Any) -> tuple[int, int]:
    sizes = [size, size] if isinstance(size, int) else list(size)
    if len(sizes) == 1:
        sizes *= 2
    if len(sizes) != 2 or not all(isinstance(s, int) and s > 0 for s in sizes):
        raise NotCompiled(f"size={size!r}")
    return sizes[0], sizes[1]


def _filter(interpolation: Any) -> Filter:
    from torchvision.transforms import InterpolationMode

    if isinstance(interpolation, int) and not isinstance(interpolation, InterpolationMode):
        from torchvision.transforms.functional import _interpolation_modes_from_int

        interpolation = _interpolation_modes_from_int(interpolation)
    name = getattr(interpolation, "value", interpolation)
    if name not in _FILTERS:
        raise NotCompiled(f"interpolation {name!r}")
    return _FILTERS[name]


def _size(stages: Sequence[Stage], images: ImageKind) -> tuple[int | None, int | None]:
    """Returns height and width of the result where they are the same for every image."""
    height, width = images.height, images.width
    for stage in stages:
        if isinstance(stage, (RandomResizedCrop, Resize, CenterCrop, RandomCrop)):
            height, width = stage.height, stage.width
        elif isinstance(stage, ResizeShorterSide):
            height, width = _shorter_side(stage, height, width)
    return height, width


def _shorter_side(
    stage: ResizeShorterSide, height: int | None, width: int | None
) -> tuple[int | None, int | None]:
    if height is None or width is None or (stage.max_size and height != width):
        return None, None
    longer = int(stage.size * max(height, width) / min(height, width))
    return (stage.size, longer) if height <= width else (longer, stage.size)


def _table(conversions: Sequence[Any], channels: int) -> Convert:
    """Runs the conversions on every level of every channel, twice, in different places."""
    levels = np.arange(256, dtype=np.uint8)
    shuffled = levels[(levels.astype(np.int64) * 77 + 13) % 256]
    straight, other = (_run(conversions, values, channels) for values in (levels, shuffled))
    order = torch.from_numpy(shuffled.astype(np.int64))
    same = torch.equal(straight[:, order].view(torch.uint8), other.view(torch.uint8))
    if not same:
        raise NotCompiled("the conversion is not the same for every pixel")
    return Convert(_ELEMENTS[straight.dtype], "chw", straight.view(torch.uint8).numpy().tobytes())


def _run(conversions: Sequence[Any], levels: np.ndarray[Any, Any], channels: int) -> torch.Tensor:
    from PIL import Image

    pixels = levels.reshape(16, 16)
    image: Any = Image.fromarray(pixels if channels == 1 else np.stack([pixels] * 3, axis=2))
    try:
        for conversion in conversions:
            image = conversion(image)
    except Exception as error:
        raise NotCompiled(f"it raises {type(error).__name__}: {error}") from None
    if not isinstance(image, torch.Tensor) or tuple(image.shape) != (channels, 16, 16):
        raise NotCompiled(f"the conversion does not give a tensor of {channels} channel(s)")
    if image.dtype not in _ELEMENTS:
        raise NotCompiled(f"{image.dtype} is not supported")
    return image.as_subclass(torch.Tensor).reshape(channels, 256).contiguous()


def _text(step: Any) -> str:
    text = " ".join(repr(step).split())
    return text if len(text) <= 100 else text[:97] + "..."
