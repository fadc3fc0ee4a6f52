"""torchvision's color operations, resizes and warps on plain tensors, such as frames, natively.

Nothing is deferred: the result is a plain tensor with the bits, shape and strides that torchvision
gives it, where torch makes a tensor for each step of the arithmetic. Whether native code rounds as
the installed torch does on this processor is tried once for each function and dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from fusionloader.data.deferred import activity
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.guard import PLAIN, Function
from fusionloader.data.deferred.pillow import Argument
from fusionloader.data.deferred.tensors.native_operations import (
    LEAST_PIXELS,
    OPERATIONS,
    RESIZE,
    WARP,
    Rounding,
    has_known_keys,
)
from fusionloader.transforms.plan.patches import REPLACED

_MOST_DIMS = {"torch_v1": 4, "torch_v2": 64}  # as many as v1 sharpens


def kernel(name: str, kind: type[torch.Tensor], rounding: Rounding) -> Function:
    """Returns an attempt at a function of torchvision on tensors.

    Args:
        name: name of the function.
        kind: exact class of the images.
        rounding: whose arithmetic it is.
    """
    operation = OPERATIONS[name]
    label = {WARP: "warps by a grid", RESIZE: "antialiased resizes"}.get(name, name)

    def attempt(image: Argument = None, /, *arguments: Argument, **named: Argument) -> Any:
        if torch.compiler.is_compiling() or type(image) is not kind or not activity.is_active():
            return PLAIN
        plain = image.as_subclass(torch.Tensor)
        if plain.dtype not in operation.dtypes or plain.ndim > _MOST_DIMS[rounding]:
            return PLAIN
        if plain.numel() < 3 * LEAST_PIXELS[name]:
            return PLAIN
        if not operation.takes(plain) or not _is_plain(plain):
            return PLAIN
        if not rounds_natively(name, plain.dtype, rounding):
            counts().left[f"{label} of {plain.dtype}, which torch rounds otherwise here"] += 1
            return PLAIN
        if any(scope.get(key) is not called for scope, key, called in _called(name, rounding)):
            return PLAIN  # the program has replaced it
        made = operation.run(plain, rounding, *arguments, **named)
        if made is None:
            return PLAIN
        counts().native[label] += 1
        return made if kind is torch.Tensor else _wrap(made, image)

    return attempt


def _wrap(made: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    from torchvision import tv_tensors

    wrapped: torch.Tensor = tv_tensors.wrap(made, like=like)
    return wrapped


def _is_plain(image: torch.Tensor) -> bool:
    """Whether torch computes elements in one thread, and does nothing else that can be seen."""
    if image.requires_grad or not has_known_keys(image):
        return False
    if torch.get_default_dtype() is not torch.float32:
        return False  # of levels that are compared with numbers or multiplied by them
    if torch.get_num_threads() != 1 or torch.is_autocast_enabled("cpu"):
        return False
    if image.data_ptr() % image.element_size():
        return False
    if not torch.backends.mkldnn.enabled or forward_ad._current_level >= 0:
        return False  # another convolution, or tensors with tangents
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    return torch._C._get_tracing_state() is None


@functools.cache
def rounds_natively(name: str, dtype: torch.dtype, rounding: Rounding) -> bool:
    """Whether native code gives the bits and strides that torchvision gives images of a dtype."""
    operation, function = OPERATIONS[name], _find_original(name, rounding)
    also_floats = dtype is torch.uint8 and torch.float32 in operation.dtypes
    if also_floats and not rounds_natively(name, torch.float32, rounding):
        return False  # few levels show what floats always do
    with torch.no_grad(), activity.suspended():  # v1's functions call each other
        for image in filter(operation.takes, _trial_images(dtype, _MOST_DIMS[rounding])):
            for arguments in operation.trials:
                expected = function(image, *arguments)
                found = operation.run(image, rounding, *arguments)
                if found is None or not _is_same(found, expected):
                    return False
    return True


def _find_original(name: str, rounding: Rounding) -> Function:
    from torchvision.transforms import _functional_tensor
    from torchvision.transforms.v2 import functional
    from torchvision.transforms.v2.functional import _geometry

    v2 = rounding == "torch_v2"
    if v2 and name not in (WARP, RESIZE):
        return getattr(functional, f"{name}_image")  # type: ignore[no-any-return]
    function = getattr(_geometry if v2 else _functional_tensor, name)
    return getattr(function, REPLACED, function)  # type: ignore[no-any-return]


@functools.cache
def _called(name: str, rounding: Rounding) -> tuple[tuple[dict[str, Any], str, Function], ...]:
    """Returns what a function of torchvision calls, in turn: scope, name and function of each."""
    found = {}
    callers = [_find_original(name, rounding)]
    for caller in callers:
        scope = caller.__globals__
        for key in caller.__code__.co_names:
            called = scope.get(key)
            if isinstance(called, FunctionType):
                found[id(scope), key] = scope, key, called
                original = getattr(called, REPLACED, called)
                if original not in callers:
                    callers.append(original)
    return tuple(found.values())


def _trial_images(dtype: torch.dtype, most_dims: int) -> Iterator[torch.Tensor]:
    """Yields images for which torch chooses each of its ways: large and small, of both layouts."""
    random = np.random.default_rng(1)
    shapes = (3, 3, 53, 61), (3, 7, 9), (1, 3, 40, 40), (2, 1, 3, 17, 31)
    for shape in (shape for shape in shapes if len(shape) <= most_dims):
        image = torch.from_numpy(random.random(shape, np.float32))
        if dtype is torch.uint8:
            image = (image * 255).to(torch.uint8)
        else:
            image = image * 1.5 - 0.25
            image.view(-1)[::7] = -0.0
        yield image
        yield image.movedim(-3, -1).contiguous().movedim(-1, -3)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.shape, one.dtype, one.stride()) != (other.shape, other.dtype, other.stride()):
        return False
    bits = torch.uint8 if one.dtype is torch.uint8 else torch.int32
    return torch.equal(one.view(bits), other.view(bits))
