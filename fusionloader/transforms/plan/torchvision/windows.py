"""Converts torchvision's crops, resizes, flips and padding to stages."""

from __future__ import annotations

from fusionloader.transforms.plan.arguments import (
    Argument,
    Context,
    Converter,
    NeedsFloats,
    NotCompiled,
    Transform,
    color,
    filter_name,
    for_both_versions,
    padding_sides,
    pair,
)
from fusionloader.transforms.plan.stages import (
    CenterCrop,
    Color,
    Filter,
    Fixed,
    RandomChoice,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ResizeShorterSide,
    Stage,
)
from fusionloader.transforms.plan.torchvision.on_tensors import (
    ALIASED_FILTERS,
    FLOAT_FILTERS,
    TORCH_FILTERS,
    resizes_floats,
    resizes_levels,
)


def converters() -> dict[type, Converter]:
    known = {
        "RandomResizedCrop": _random_resized_crop,
        "Resize": _resize,
        "CenterCrop": _center_crop,
        "RandomCrop": _random_crop,
        "RandomHorizontalFlip": lambda step, _: RandomHorizontalFlip(float(step.p)),
        "RandomVerticalFlip": lambda step, _: RandomVerticalFlip(float(step.p)),
        "Pad": _pad,
    }
    return for_both_versions(known)


def _random_resized_crop(step: Transform, context: Context) -> Stage:
    height, width = pair(step.size)
    filters = (_filter(step, context, width),)
    scale, ratio = tuple(map(float, step.scale)), tuple(map(float, step.ratio))
    if not (0 < scale[0] <= scale[1] and 0 < ratio[0] <= ratio[1]):
        raise NotCompiled("its scale or ratio is not an increasing pair of positive numbers")
    return RandomResizedCrop(height, width, scale, ratio, filters)  # type: ignore[arg-type]


def _resize(step: Transform, context: Context) -> Stage:
    size = step.size
    if size is None:
        raise NotCompiled("size=None")
    sizes = [size] if isinstance(size, int) else list(size)
    if not all(isinstance(s, int) and s > 0 for s in sizes):
        raise NotCompiled(f"size={size!r}")
    if len(sizes) == 1:
        if step.max_size is not None and step.max_size <= sizes[0]:
            raise NotCompiled("max_size is not larger than size")
        filter = _filter(step, context, sizes[0] if step.max_size is None else 1)
        return ResizeShorterSide(sizes[0], step.max_size, filter)
    if step.max_size is not None:
        raise NotCompiled("max_size with a size of two")
    return Resize(sizes[0], sizes[1], _filter(step, context, sizes[1]))


def _filter(step: Transform, context: Context, least_width: int) -> Filter:
    """Returns the filter of a resize: Pillow's, or torch's for a tensor."""
    if context.held != "floats":
        context.require_levels(same_on_tensors=True)
    name = filter_name(step.interpolation)
    if context.held == "pil":
        return name
    if not step.antialias:
        return _aliased_filter(name, step, context)
    if context.held == "tensor" and not context.exact:
        return name
    from torchvision.transforms import v2

    if context.held == "tensor" and type(step) in (v2.Resize, v2.RandomResizedCrop):
        if resizes_levels(name):
            return TORCH_FILTERS[name]
    elif context.in_plan and resizes_floats(name):
        # The older transforms make floats of levels, and round them again. What torch makes of rows
        # that become one pixel wide depends on how they lie in memory.
        if least_width < 2:
            raise NotCompiled("the result may be one pixel wide")
        if context.held == "floats" and not context.on_floats:
            raise NeedsFloats
        return FLOAT_FILTERS[name]
    raise NotCompiled("torchvision resizes tensors otherwise: put it before the conversion")


def _aliased_filter(name: Filter, step: Transform, context: Context) -> Filter:
    is_known = context.held == "floats" and context.in_plan and context.channels == 3
    if not (is_known and resizes_floats(name, antialias=False)):
        raise NotCompiled(f"antialias={step.antialias!r}")
    if not context.on_floats:
        raise NeedsFloats
    return ALIASED_FILTERS[name]


def _border(fill: Argument, step: Transform, context: Context) -> Color:
    from torchvision.transforms import v2

    is_older = type(step) not in (v2.Pad, v2.RandomCrop)
    if context.held != "pil" and is_older and not isinstance(fill, (int, float)):
        raise NotCompiled(f"fill={fill!r} is for PIL images")
    return context.border(color(fill, context.channels))


def _center_crop(step: Transform, context: Context) -> Stage:
    if context.border((0, 0, 0)) != (0, 0, 0):
        raise NeedsFloats  # where the image is smaller, it pads what is converted already
    return CenterCrop(*pair(step.size))


def _random_crop(step: Transform, context: Context) -> Stage:
    from torchvision.transforms import v2

    if step.padding is None:
        sides = (0, 0, 0, 0)
    elif type(step) is v2.RandomCrop:
        left, right, top, bottom = step.padding
        sides = padding_sides([left, top, right, bottom])
    else:
        sides = padding_sides(step.padding)
    height, width = pair(step.size)
    fill = color(step.fill, context.channels)
    if any(sides) or step.pad_if_needed:
        if step.padding_mode != "constant":
            return _crop_of_reflection(step, context, sides)
        fill = _border(step.fill, step, context)
    return RandomCrop(height, width, sides, bool(step.pad_if_needed), fill)


def _crop_of_reflection(
    step: Transform, context: Context, sides: tuple[int, int, int, int]
) -> Stage:
    """Returns the stages of a crop from a border of the image's own pixels."""
    if step.pad_if_needed or not context.in_plan:
        raise NotCompiled(f"padding_mode={step.padding_mode!r}")
    height, width = pair(step.size)
    steps = (
        _reflection(step, context, sides),
        RandomCrop(height, width, (0, 0, 0, 0), False, (0, 0, 0)),
    )
    return RandomChoice((steps,), (1.0,))


def _reflection(step: Transform, context: Context, sides: tuple[int, int, int, int]) -> Fixed:
    if context.on_floats:
        raise NotCompiled(f"padding_mode={step.padding_mode!r} of floats")
    if context.held != "pil":
        if not isinstance(step.fill, (int, float)):
            raise NotCompiled(f"fill={step.fill!r} with padding_mode={step.padding_mode!r}")
        if context.in_plan and step.padding_mode != "edge":
            _require_larger_image(sides, step.padding_mode, context)
    return Fixed(("pad", *sides, step.padding_mode, color(step.fill, context.channels)))


def _require_larger_image(sides: tuple[int, int, int, int], mode: str, context: Context) -> None:
    """Refuses borders that torch may refuse because the image is smaller."""
    left, top, right, bottom = sides
    least = 1 if mode == "reflect" else 0
    for size, border in zip(context.size, (max(top, bottom), max(left, right)), strict=True):
        if size is None or size < border + least:
            raise NotCompiled(f"padding_mode={mode!r} of a tensor that may be smaller")


def _pad(step: Transform, context: Context) -> Stage:
    sides = padding_sides(step.padding)
    if step.padding_mode != "constant":
        return _reflection(step, context, sides)
    return Fixed(("pad", *sides, "constant", _border(step.fill, step, context)))
