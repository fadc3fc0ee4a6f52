"""Converts torchvision's crops, resizes, flips and padding to stages."""

from __future__ import annotations

from fusionloader.transforms.plan.arguments import (
    Context,
    Converter,
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
    Filter,
    Fixed,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ResizeShorterSide,
    Stage,
)
from fusionloader.transforms.plan.torchvision.on_tensors import TORCH_FILTERS, resizes_levels


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
    filters = (_filter(step, context),)
    height, width = pair(step.size)
    scale, ratio = tuple(map(float, step.scale)), tuple(map(float, step.ratio))
    if not (0 < scale[0] <= scale[1] and 0 < ratio[0] <= ratio[1]):
        raise NotCompiled("its scale or ratio is not an increasing pair of positive numbers")
    return RandomResizedCrop(height, width, scale, ratio, filters)  # type: ignore[arg-type]


def _resize(step: Transform, context: Context) -> Stage:
    filter = _filter(step, context)
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


def _filter(step: Transform, context: Context) -> Filter:
    """Returns the filter of a resize: Pillow's, or torch's for a uint8 tensor."""
    context.require_levels(same_on_tensors=True)
    name = filter_name(step.interpolation)
    if context.held != "tensor":
        return name
    if step.antialias is False:
        raise NotCompiled("antialias=False")
    if not context.exact:
        return name
    from torchvision.transforms import v2

    if type(step) not in (v2.Resize, v2.RandomResizedCrop) or not resizes_levels(name):
        raise NotCompiled("torchvision resizes tensors otherwise: put it before the conversion")
    return TORCH_FILTERS[name]


def _center_crop(step: Transform, context: Context) -> Stage:
    if context.held == "floats":
        raise NotCompiled("it may pad what is converted already")
    return CenterCrop(*pair(step.size))


def _random_crop(step: Transform, context: Context) -> Stage:
    from torchvision.transforms import v2

    padded = step.padding is not None or step.pad_if_needed
    if padded and step.padding_mode != "constant":
        raise NotCompiled(f"padding_mode={step.padding_mode!r}")
    if step.padding is None:
        sides = (0, 0, 0, 0)
    elif type(step) is v2.RandomCrop:
        left, right, top, bottom = step.padding
        sides = padding_sides([left, top, right, bottom])
    else:
        sides = padding_sides(step.padding)
    if context.held == "floats" and (any(sides) or step.pad_if_needed):
        raise NotCompiled("padding after the conversion to floats is not compiled")
    height, width = pair(step.size)
    fill = color(step.fill, context.channels)
    return RandomCrop(height, width, sides, bool(step.pad_if_needed), fill)


def _pad(step: Transform, context: Context) -> Stage:
    if context.held == "floats":
        raise NotCompiled("padding after the conversion to floats is not compiled")
    fill = color(step.fill, context.channels)
    return Fixed(("pad", *padding_sides(step.padding), step.padding_mode, fill))
