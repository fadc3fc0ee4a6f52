"""What image processors call on ``ImageStack``: functions of torch, functionals of torchvision.

A function that records returns ``PLAIN`` for what it leaves to the library, which makes the tensor.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fusionloader.data.deferred import methods
from fusionloader.data.deferred.enhancing import padded
from fusionloader.data.deferred.guard import PLAIN, guarded
from fusionloader.data.deferred.image_stacks import IMAGE_LEVELS, ImageStack, StackView, find_view
from fusionloader.data.deferred.pillow import Argument
from fusionloader.data.deferred.rows.memory import joined_shape
from fusionloader.data.deferred.tensors.deferred_tensor import call_plain
from fusionloader.transforms.plan.torchvision.on_tensors import TORCH_FILTERS, resizes_levels

Function = Callable[..., Any]

# ---- torch's functions -------------------------------------------------------------------------


def _viewing(function: Function) -> Function:
    """Returns a recorder of a function that views a tensor, or copies it to view the copy."""

    def record(view: StackView, *arguments: Argument, **named: Argument) -> Any:
        if not all(map(_is_of_numbers, (*arguments, *named.values()))):
            return PLAIN
        memory, before = view.memory, view.alias
        after = function(before, *arguments, **named)
        made = StackView(memory, after)
        if memory.window is not None and (function is torch.Tensor.contiguous or not made.cores()):
            return PLAIN  # its strides are those of the other images
        if after.untyped_storage()._cdata != before.untyped_storage()._cdata:
            return view.copied(after.shape)
        return ImageStack.of(made)

    return record


def _is_of_numbers(value: Argument) -> bool:
    """Whether torch views a tensor by an index or argument."""
    if type(value) in (tuple, torch.Size):
        return all(map(_is_of_numbers, value))
    return type(value) in (int, slice, type(None), type(...))


def _to(view: StackView, *arguments: Argument, **named: Argument) -> Any:
    dtype, levels = arguments[0] if len(arguments) == 1 and not named else None, view.memory.levels
    if type(dtype) is not torch.dtype:
        return PLAIN
    return view if dtype is levels.dtype else view.converted(levels.to(dtype))


def _multiplied(view: StackView, number: Argument) -> Any:
    if type(number) not in (int, float):
        return PLAIN
    return view.converted(view.memory.levels * number)


def _joining(function: Function) -> Function:
    """Returns an attempt to record ``torch.cat`` or ``torch.stack`` in the first dimension."""

    def attempt(tensors: Argument, dim: Argument = 0) -> Any:
        if dim != 0 or type(dim) is not int or type(tensors) not in (list, tuple):
            return PLAIN
        views = [view for view in map(find_view, tensors) if view is not None]
        for view in views:
            view.read_size()
        if not views or len(views) < len(tensors):
            return PLAIN
        found = [view.parts() for view in views]
        levels = [view.memory.levels for view in views]
        shape = joined_shape(function.__name__, [view.alias.shape for view in views])
        if not all(found) or not all(_are_equal(each, levels[0]) for each in levels):
            return PLAIN
        if shape is None:
            return PLAIN
        return ImageStack.of(StackView.of(list(itertools.chain(*found)), levels[0], shape))

    return guarded(attempt, functools.partial(call_plain, function), f"torch.{function.__name__}")


def _are_equal(levels: torch.Tensor, others: torch.Tensor) -> bool:
    if levels is others:
        return True
    return levels.dtype == others.dtype and torch.equal(levels, others)


def _attempt(name: str, record: Function) -> Function:
    """Returns an attempt to record a function of an ``ImageStack``."""

    def attempt(tensor: Argument, *arguments: Argument, **named: Argument) -> Any:
        view = find_view(tensor)
        if view is not None and name not in _OF_ANY_SIZE:
            is_one = name == "__getitem__" and type(arguments[0]) is int
            if not is_one:
                view.read_size()
        made = PLAIN if view is None else record(view, *arguments, **named)
        return tensor if made is view else made

    return attempt


# Their results depend on an image's size only as the image does: code has to read it from them.
_OF_ANY_SIZE = {"resize", "unsqueeze"}
_VIEWS = (
    *("__getitem__", "contiguous", "expand", "flatten", "movedim", "permute", "reshape", "select"),
    *("squeeze", "transpose", "unflatten", "unsqueeze", "view"),
)
_METHODS = {
    "to": _to,
    "__mul__": _multiplied,
    **{name: _viewing(getattr(torch.Tensor, name)) for name in _VIEWS},
}


def _recorders() -> Iterator[tuple[Function, Function]]:
    for owner, names in ((torch.Tensor, _METHODS), (torch, _VIEWS)):
        for name in names:
            function = getattr(owner, name, None)
            if function is not None:
                plain = functools.partial(call_plain, function)
                yield function, guarded(_attempt(name, _METHODS[name]), plain, f"torch.{name}")
    for function in (torch.cat, torch.stack):
        yield function, _joining(function)


ImageStack.recorders.update(_recorders())
for _name in _METHODS:  # these take less time than __torch_function__
    setattr(ImageStack, _name, ImageStack.recorders[getattr(torch.Tensor, _name)])


# ---- functionals of torchvision ----------------------------------------------------------------


def _resize(
    view: StackView,
    size: Argument,
    interpolation: Argument,
    max_size: Argument = None,
    antialias: Argument = True,
) -> Any:
    mode: Argument = getattr(interpolation, "value", None)
    if antialias is not True or max_size is not None or not isinstance(size, (list, tuple)):
        return PLAIN
    # torch fails to resize to a single pixel.
    if len(size) != 2 or not _are_sides(*size) or min(*size, *view.alias.shape[-2:]) < 2:
        return PLAIN
    if view.memory.levels is not IMAGE_LEVELS or not resizes_levels(mode):
        return PLAIN
    height, width = size
    if (height, width) == view.alias.shape[-2:]:
        return view
    operation = "resize", width, height, TORCH_FILTERS[mode]
    return view.like([core.then(operation, (width, height)) for core in view.cores()])


def _crop(view: StackView, top: Argument, left: Argument, height: Argument, width: Argument) -> Any:
    if not (type(top) is type(left) is int) or not _are_sides(height, width):
        return PLAIN
    most_rows, most_columns = view.alias.shape[-2:]
    bottom, right = top + height, left + width
    if view.memory.levels is not IMAGE_LEVELS:
        return PLAIN
    window = None  # outside, torch pads a copy
    if min(top, left) >= 0 and bottom <= most_rows and right <= most_columns:
        window = view, slice(top, bottom), slice(left, right)
    cores = [methods.crop(core, (left, top, right, bottom)) for core in view.cores()]
    return view.like(cores, window=window)


def _pad(
    view: StackView, padding: Argument, fill: Argument = None, padding_mode: Argument = "constant"
) -> Any:
    color = fill if isinstance(fill, (list, tuple)) else (0 if fill is None else fill,) * 3
    if view.memory.levels is not IMAGE_LEVELS or padding_mode != "constant":
        return PLAIN
    if not isinstance(padding, (list, tuple)) or len(padding) != 4 or len(color) != 3:
        return PLAIN
    if not all(type(level) is int and 0 <= level <= 255 for level in color):
        return PLAIN
    return view.like([padded(core, padding, tuple(color)) for core in view.cores()])


def _normalize(view: StackView, mean: Argument, std: Argument, inplace: Argument = False) -> Any:
    from torchvision.transforms.v2 import functional

    cores, memory = view.cores(), view.memory
    if not (cores and _is_for_channels(mean) and _is_for_channels(std)):
        return PLAIN
    try:
        levels = functional.normalize_image(memory.levels, mean, std)
    except (RuntimeError, TypeError, ValueError):  # torchvision has it for the images, too
        return PLAIN
    made = view.converted(levels)
    if not inplace or made is PLAIN:
        return made
    if len(cores) < len(memory.parts):
        return PLAIN
    memory.levels = levels
    return view


def _is_for_channels(values: Argument) -> bool:
    if type(values) is torch.Tensor:
        return values.ndim == 1
    return isinstance(values, (list, tuple)) and all(type(each) in (int, float) for each in values)


def _are_sides(*sides: Argument) -> bool:
    return all(type(side) is int and 1 <= side <= methods.MOST_SIDE for side in sides)


KERNELS: dict[str, Function] = {
    "resize": _resize,
    "crop": _crop,
    "pad": _pad,
    "normalize": _normalize,
}
"""Recorders of functionals of torchvision's v2, by name."""


def kernel(name: str, plain: Function) -> Function:
    """Returns the kernel of a functional for ``ImageStack``; ``plain`` is that for tensors."""
    return guarded(_attempt(name, KERNELS[name]), plain)
