"""The recorded functions: torch's slices, flips and conversions, and torchvision's resizes.

A function that records returns ``PLAIN`` for what it leaves to the library, which makes the tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fusionloader.data.deferred.core import BLACK
from fusionloader.data.deferred.guard import PLAIN, call_library, guarded
from fusionloader.data.deferred.methods import MOST_SIDE
from fusionloader.data.deferred.pillow import Argument
from fusionloader.data.deferred.tensors import deferred_tensor as deferred
from fusionloader.data.deferred.tensors.deferred_tensor import find_view
from fusionloader.data.deferred.tensors.level_tables import LEVELS
from fusionloader.data.deferred.tensors.tensor_view import TensorView
from fusionloader.transforms.plan.torchvision.on_tensors import (
    TORCH_FILTERS,
    has_own_rounding,
    resizes_levels,
    rounds_natively,
)

Function = Callable[..., Any]
Recorder = Callable[..., Any]

_FLIPS = {1: ("vflip",), 2: ("hflip",)}


def crop(view: TensorView, left: int, top: int, width: int, height: int) -> TensorView:
    """Returns the view of a window, which lies within."""
    operation = "crop", left, top, width, height, BLACK
    return view.follow(view.core.then(operation, (width, height)))


def _index(view: TensorView, index: Argument) -> Any:
    """Records an index of slices without steps, of all channels."""
    slices = list(index) if type(index) is tuple else [index]
    at = next((at for at, each in enumerate(slices) if each is Ellipsis), None)
    if at is not None:
        slices[at : at + 1] = [slice(None)] * (4 - len(slices))
    slices += [slice(None)] * (3 - len(slices))
    if len(slices) != 3 or not all(map(_is_plain_slice, slices)):
        return PLAIN
    sides = (3, *view.core.size[::-1])
    channels, rows, columns = (
        range(*each.indices(side)) for each, side in zip(slices, sides, strict=True)
    )
    if len(channels) < 3 or not (rows and columns):
        return PLAIN
    return crop(view, columns[0], rows[0], len(columns), len(rows))


def _is_plain_slice(value: Argument) -> bool:
    if type(value) is not slice:
        return False
    ends = value.start, value.stop
    return value.step in (None, 1) and all(end is None or type(end) is int for end in ends)


def _flip(view: TensorView, *dims: Argument, **named: Argument) -> Any:
    if named:
        dims = (*dims, *named.values()) if named.keys() == {"dims"} else ()
    if len(dims) == 1 and type(dims[0]) in (tuple, list):
        dims = tuple(dims[0])
    if not dims or not all(type(dim) is int and -3 <= dim < 3 for dim in dims):
        return PLAIN
    found = {dim % 3 for dim in dims}
    if 0 in found or len(found) < len(dims) or min(view.core.size) < 2:
        return PLAIN
    core = view.core
    for dim in sorted(found):
        core = core.then(_FLIPS[dim])
    return view.follow(core)


def _contiguous(view: TensorView, *arguments: Argument, **named: Argument) -> Any:
    size = view.core.size
    if arguments or named or min(size) < 2:
        return PLAIN
    if not view.memory.is_interleaved and size == view.memory.core.size:
        return view
    return TensorView.of_all(view.core, view.memory.levels, is_interleaved=False)


def _converted(view: TensorView, name: str, function: Function, *key: Argument) -> Any:
    """Records an elementwise function; ``key`` has its arguments, numbers or a dtype."""
    if min(view.core.size) < 2:
        return PLAIN
    before = view.memory.levels
    after = before.then((name, *((type(each), repr(each)) for each in key)), function)
    if after is None:
        return PLAIN
    return view if after is before else view.converted(after)


def _to(view: TensorView, *arguments: Argument, **named: Argument) -> Any:
    if named:
        arguments = (*arguments, *named.values()) if named.keys() == {"dtype"} else ()
    if len(arguments) != 1 or type(arguments[0]) is not torch.dtype:
        return PLAIN
    dtype = arguments[0]
    return _converted(view, "to", lambda levels: levels.to(dtype), dtype)


def _cast(name: str) -> Recorder:
    call = getattr(torch.Tensor, name)

    def record(view: TensorView, *arguments: Argument, **named: Argument) -> Any:
        return PLAIN if arguments or named else _converted(view, name, call)

    return record


def _arithmetic(name: str) -> Recorder:
    call = getattr(torch, name)

    def record(view: TensorView, *numbers: Argument, **named: Argument) -> Any:
        if named or len(numbers) != 1 or type(numbers[0]) not in (int, float):
            return PLAIN
        return _converted(view, name, lambda levels: call(levels, *numbers), *numbers)

    return record


def _recording_torch(record: Recorder, function: Function) -> Function:
    """Returns a function that records, or calls torch's with tensors that are made."""
    keeps_class = function is torch.Tensor.to

    def attempt(tensor: Argument = None, *arguments: Argument, **named: Argument) -> Any:
        view = find_view(tensor)
        if view is None:
            return PLAIN
        kind = type(tensor)
        is_image = kind is not deferred.DeferredTensor
        if is_image and _must_return_subclass():
            return PLAIN
        after = record(view, *arguments, **named)
        if after is view:  # torchvision has another object for an image
            return PLAIN if is_image and not keeps_class else tensor
        if after is PLAIN:
            return PLAIN
        return deferred.deferred_tensor(after, kind if keeps_class else deferred.DeferredTensor)

    plain = functools.partial(deferred.call_plain, function)
    return guarded(attempt, plain, f"torch.{function.__name__}")


def _must_return_subclass() -> bool:
    """Whether torch's functions return images of torchvision for such images."""
    from torchvision.tv_tensors import _torch_function_helpers

    return bool(_torch_function_helpers._must_return_subclass())


_METHODS: dict[str, Recorder] = {
    "__getitem__": _index,
    "flip": _flip,
    "contiguous": _contiguous,
    "to": _to,
    **{name: _cast(name) for name in ("float", "half", "double", "bfloat16")},
    **{name: _arithmetic(name) for name in ("add", "sub", "mul", "div")},
}
_FUNCTIONS = {name: _METHODS[name] for name in ("flip", "add", "sub", "mul", "div")}

deferred.DeferredTensor.recorders.update(
    {
        function: _recording_torch(record, function)
        for owner, table in ((torch.Tensor, _METHODS), (torch, _FUNCTIONS))
        for name, record in table.items()
        for function in [getattr(owner, name)]
    }
)


def resize(
    view: TensorView,
    size: Argument,
    interpolation: Argument = "bilinear",
    max_size: Argument = None,
    antialias: Argument = True,
) -> Any:
    """Records ``resize_image`` of torchvision's v2."""
    from torchvision.transforms.v2.functional import _geometry

    mode = call_library(_geometry._check_interpolation, interpolation).value
    if antialias is not True or view.memory.levels is not LEVELS or not resizes_levels(mode):
        return PLAIN
    width, height = view.core.size
    sizes = call_library(_geometry._compute_resized_output_size, (height, width), size, max_size)
    new_height, new_width = sizes
    if (new_width, new_height) == (width, height):
        return view
    sides = width, height, new_width, new_height
    if not all(type(side) is int and 2 <= side <= MOST_SIDE for side in sides):
        return PLAIN
    operation = "resize", new_width, new_height, TORCH_FILTERS[mode]
    return view.follow(view.core.then(operation, (new_width, new_height)))


def resized_crop(
    view: TensorView,
    top: Argument,
    left: Argument,
    height: Argument,
    width: Argument,
    size: Argument,
    interpolation: Argument = "bilinear",
    antialias: Argument = True,
) -> Any:
    """Records ``resized_crop_image`` of torchvision's v2."""
    if not _is_inside(view, top, left, height, width) or min(height, width) < 2:
        return PLAIN
    return resize(crop(view, left, top, width, height), size, interpolation, None, antialias)


def _is_inside(view: TensorView, *window: Argument) -> bool:
    """Whether the window (top, left, height, width) lies within and has a pixel."""
    if not all(type(each) is int for each in window):
        return False
    top, left, height, width = window
    inside = left + width <= view.core.size[0] and top + height <= view.core.size[1]
    return bool(inside and min(top, left) >= 0 and min(height, width) > 0)


def to_dtype(view: TensorView, dtype: Argument = torch.float, scale: Argument = False) -> Any:
    """Records ``to_dtype_image`` of torchvision's v2."""
    from torchvision.transforms.v2 import functional

    if type(dtype) is not torch.dtype or type(scale) is not bool:
        return PLAIN
    call = functools.partial(functional.to_dtype_image, dtype=dtype, scale=scale)
    return _converted(view, "to_dtype", call, dtype, scale)


def normalize(view: TensorView, mean: Argument, std: Argument, inplace: Argument = False) -> Any:
    """Records ``normalize_image`` of torchvision's v2, by numbers and not in place."""
    from torchvision.transforms.v2 import functional

    key: list[Argument] = []
    for values in (mean, std):
        if type(values) not in (list, tuple) or not all(type(each) is float for each in values):
            return PLAIN
        key.append(tuple(values))
    if inplace is not False:
        return PLAIN
    call = functools.partial(functional.normalize_image, mean=mean, std=std)
    return _converted(view, "normalize", call, *key)


def crop_inside(
    view: TensorView, top: Argument, left: Argument, height: Argument, width: Argument
) -> Any:
    """Records ``crop_image`` of torchvision's v2 within the image."""
    if not _is_inside(view, top, left, height, width):
        return PLAIN
    return crop(view, left, top, width, height)


def center_crop(view: TensorView, output_size: Argument) -> Any:
    """Records ``center_crop_image`` of torchvision's v2 within the image."""
    from torchvision.transforms.v2.functional import _geometry

    size = call_library(_geometry._center_crop_parse_output_size, output_size)
    sides = *size, *view.core.size[::-1]
    if not all(type(side) is int for side in sides):
        return PLAIN
    top, left = _geometry._center_crop_compute_crop_anchor(*sides)
    return crop_inside(view, top, left, *size)


def _change_of_levels(name: str, *bounds: float) -> Recorder:
    """Returns a recorder of a color operation of torchvision's v2 with numbers within bounds."""

    def record(view: TensorView, *arguments: Argument, **named: Argument) -> Any:
        values = *arguments, *named.values()
        if view.memory.levels is not LEVELS or min(view.core.size) < 2:
            return PLAIN
        if not all(type(each) in (int, float) for each in values) or len(values) != bool(bounds):
            return PLAIN
        if not all(bounds[0] <= each <= bounds[1] for each in values):
            return PLAIN
        rounding = has_own_rounding(name)
        if rounding and not rounds_natively(name, "torch_v2"):
            return PLAIN
        operation = name, *map(_NUMBERS.get(name, float), values), *(["torch_v2"] * rounding)
        return view.follow(view.core.then(operation))

    return record


def _float32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32, device="cpu").item()


# Torch compares levels with a threshold in float32.
_NUMBERS: dict[str, Callable[[Any], Any]] = {"posterize": int, "solarize": _float32}
_MOST_FACTOR = 1000.0

KERNELS: dict[str, Recorder] = {
    **{
        f"adjust_{name}": _change_of_levels(name, 0.0, _MOST_FACTOR)
        for name in ("brightness", "contrast", "saturation", "sharpness")
    },
    "adjust_hue": _change_of_levels("hue", -0.5, 0.5),
    "posterize": _change_of_levels("posterize", 0, 7),
    "solarize": _change_of_levels("solarize", 0, 255),
    **{name: _change_of_levels(name) for name in ("invert", "autocontrast", "equalize")},
    "resize": resize,
    "resized_crop": resized_crop,
    "to_dtype": to_dtype,
    "normalize": normalize,
}
"""Recorders of kernels of torchvision's v2, by the name of the functional."""

IMAGE_KERNELS: dict[str, Recorder] = {
    **KERNELS,
    "crop": crop_inside,
    "center_crop": center_crop,
    "horizontal_flip": functools.partial(_flip, dims=(-1,)),
    "vertical_flip": functools.partial(_flip, dims=(-2,)),
}
"""The same for ``tv_tensors.Image``, whose kernels do not call torch's functions on the image."""


def kernel(record: Recorder) -> Function:
    """Returns an attempt to record a kernel of torchvision's v2."""

    def attempt(inpt: Argument, *arguments: Argument, **named: Argument) -> Any:
        view = find_view(inpt)
        if view is None:
            return PLAIN
        after = record(view, *arguments, **named)
        if after is PLAIN:
            return PLAIN
        kind = type(inpt)
        if after is view and kind is deferred.DeferredTensor:
            return inpt
        return deferred.deferred_tensor(after, kind)

    return attempt
