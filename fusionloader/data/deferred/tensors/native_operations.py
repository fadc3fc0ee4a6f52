"""torchvision's color operations, resizes and warps that native code does to plain tensors.

Each takes arguments as torchvision does, and returns ``None`` for those that native code does not
do. Results have the shape and strides that torchvision gives them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch

from fusionloader import _native
from fusionloader.data.deferred.pillow import Argument

Rounding = Literal["torch_v1", "torch_v2"]
Result = torch.Tensor | None  # None if torchvision has to be called

WARP = "_apply_grid_transform"
"""Function that torchvision's warps of tensors end with, of the same name in both versions."""

RESIZE = "interpolate"
"""Function of torch that torchvision's resizes of tensors end with, in both versions."""

_MOST_NUMBER = 1000.0
_LEAST_SIDE = 3
_MOST_BLURRED = 101
_MOST_SIDE = 1 << 15  # of what is resized, which no more than _MOST_SHRUNK inputs are weighed for
_MOST_SHRUNK = 64
_MOST_PIXELS = 1 << 27  # of an image before and after a resize


def _number(value: Argument, least: float, most: float) -> float | None:
    return float(value) if type(value) in (int, float) and least <= value <= most else None


def _adjust(
    name: str,
    image: torch.Tensor,
    out: torch.Tensor,
    rounding: Rounding,
    factor: float = 0.0,
    means: torch.Tensor | None = None,
) -> Result:
    levels = None if means is None else _memory(means)
    memory = _memory(image), _memory(out)
    return out if _native.adjust_tensor(name, *memory, factor, rounding, levels) else None


def _memory(tensor: torch.Tensor) -> memoryview:
    """Returns the elements of a tensor. After ``numpy()``, torch would not resize its storage."""
    size = tensor.element_size()
    interface = {
        "data": (tensor.data_ptr(), False),
        "shape": tuple(tensor.shape),
        "strides": tuple(size * stride for stride in tensor.stride()),
        "typestr": "|u1" if tensor.dtype is torch.uint8 else "=f4",
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface)).data


def _grey(image: torch.Tensor, rounding: Rounding, dtype: torch.dtype) -> torch.Tensor:
    *leading, _, height, width = image.shape
    out = torch.empty((*leading, 1, height, width), dtype=dtype, device="cpu")
    _adjust("grayscale", image, out, rounding)
    return out


def _by_factor(name: str) -> Callable[..., Result]:
    """Returns what blends by a factor: brightness, contrast, saturation, sharpness."""

    def run(
        image: torch.Tensor, rounding: Rounding, *arguments: Argument, **named: Argument
    ) -> Result:
        if len(arguments) + len(named) != 1 or named.keys() - {f"{name}_factor"}:
            return None
        (value,) = *arguments, *named.values()
        factor = _number(value, 0.0, _MOST_NUMBER)
        if factor is None:
            return None
        in_levels = (name, rounding, image.dtype) == ("brightness", "torch_v2", torch.uint8)
        if in_levels and type(value) is int and value > 1:
            return None  # torch multiplies uint8, which overflows
        means = None
        if name == "contrast":
            means = torch.mean(_grey(image, rounding, torch.float32), dim=(-3, -2, -1))
        elif name == "brightness" and rounding == "torch_v1":
            means = torch.zeros(image.shape[:-3], dtype=torch.float32, device="cpu")
        if name == "sharpness" and image.ndim > 4:  # torchvision goes over four dimensions
            made = run(image.flatten(0, -4), rounding, factor)
            return None if made is None else made.reshape(image.shape)
        return _adjust(name, image, torch.empty_like(image), rounding, factor, means)

    return run


def _adjust_hue(image: torch.Tensor, rounding: Rounding, hue_factor: Argument) -> Result:
    factor = _number(hue_factor, -0.5, 0.5)
    if factor is None:
        return None
    out = torch.empty(image.shape, dtype=image.dtype, device="cpu")
    return _adjust("hue", image, out, rounding, factor)


def _rgb_to_grayscale(
    image: torch.Tensor, rounding: Rounding, num_output_channels: Argument = 1
) -> Result:
    if type(num_output_channels) is not int or num_output_channels not in (1, 3):
        return None
    grey = _grey(image, rounding, image.dtype)
    return grey if num_output_channels == 1 else grey.expand(image.shape)


def _to_dtype(
    image: torch.Tensor,
    rounding: Rounding,
    dtype: Argument = torch.float32,
    scale: Argument = False,
) -> Result:
    if dtype is not torch.float32 or scale is not True:
        return None
    out = torch.empty_like(image, dtype=torch.float32)
    _native.scale_tensor(_memory(image), _memory(out))
    return out


def _normalize(
    image: torch.Tensor,
    rounding: Rounding,
    mean: Argument,
    std: Argument,
    inplace: Argument = False,
) -> Result:
    if inplace is not False or not all(map(_are_numbers, (mean, std))):
        return None
    if not all(map(np.float32, std)):
        return None
    out = torch.empty_like(image)
    _native.normalize_tensor(_memory(image), _memory(out), mean, std)
    return out


def _autocontrast(image: torch.Tensor, rounding: Rounding) -> Result:
    return _adjust("autocontrast", image, torch.empty_like(image), rounding)


def _equalize(image: torch.Tensor, rounding: Rounding) -> Result:
    out = torch.empty(image.shape, dtype=image.dtype, device="cpu")
    return _adjust("equalize", image, out, rounding)


def _solarize(image: torch.Tensor, rounding: Rounding, threshold: Argument) -> Result:
    least = _number(threshold, 0.0, 255.0 if image.dtype is torch.uint8 else 1.0)
    if least is None:
        return None
    return _adjust("solarize", image, torch.empty_like(image), rounding, least)


def _gaussian_blur(
    image: torch.Tensor, rounding: Rounding, kernel_size: Argument, sigma: Argument = None
) -> Result:
    from torchvision.transforms import _functional_tensor
    from torchvision.transforms.v2.functional import _misc

    if any(type(given) not in (list, tuple) or len(given) != 2 for given in (kernel_size, sigma)):
        return None
    if not _blurs_to_planes(image) or not all(type(size) is int for size in kernel_size):
        return None
    sides = tuple(image.shape[:-3:-1])
    if not all(0 < size <= _MOST_BLURRED and size % 2 for size in kernel_size):
        return None
    if not all(size // 2 < side for size, side in zip(kernel_size, sides, strict=True)):
        return None
    if not all(_number(value, 1e-3, _MOST_NUMBER) for value in sigma):
        return None
    library: Any = _functional_tensor if rounding == "torch_v1" else _misc
    weights = library._get_gaussian_kernel2d(
        list(kernel_size), list(sigma), torch.float32, image.device
    )
    out = torch.empty(image.shape, dtype=image.dtype, device="cpu")
    width, height = kernel_size
    _native.blur_tensor(_memory(image), _memory(out), height, width, weights.flatten().tolist())
    return out


def _blurs_to_planes(image: torch.Tensor) -> bool:
    """Whether torch lays the planes of blurred images one after the other."""
    return _is_dense(image) and (image.ndim == 3 or image.is_contiguous())


def _resize(
    image: torch.Tensor,
    rounding: Rounding,
    size: Argument = None,
    scale_factor: Argument = None,
    mode: Argument = "nearest",
    align_corners: Argument = None,
    recompute_scale_factor: Argument = None,
    antialias: Argument = False,
) -> Result:
    if antialias is not True or align_corners is not False or mode not in ("bilinear", "bicubic"):
        return None
    if scale_factor is not None or recompute_scale_factor is not None:
        return None
    if type(size) not in (list, tuple) or not all(type(side) is int for side in size):
        return None
    sides, old = tuple(size), tuple(image.shape[2:])
    if len(sides) != 2 or sides == old:
        return None
    if not _LEAST_SIDE <= min(sides + old) <= max(sides + old) <= _MOST_SIDE:
        return None  # torch rounds single columns otherwise
    if max(math.prod(sides), math.prod(old)) > _MOST_PIXELS:
        return None
    if any(was > _MOST_SHRUNK * side for was, side in zip(old, sides, strict=True)):
        return None
    out = torch.empty(
        (*image.shape[:2], *sides),
        dtype=image.dtype,
        device="cpu",
        memory_format=torch.channels_last if _is_channels_last(image) else torch.contiguous_format,
    )
    elements = "torch" if image.dtype is torch.uint8 else "float"
    _native.resize_tensor(_memory(image), _memory(out), f"{elements}_{mode}")
    return out


def _has_rows(image: torch.Tensor) -> bool:
    """Whether columns lie side by side, or the three channels of each do."""
    if image.ndim != 4:
        return False
    (_, channel, _, column), channels = image.stride(), image.shape[1]
    levels = image.dtype is torch.uint8
    if levels and (channels != 3 or image.is_contiguous(memory_format=torch.channels_last)):
        return False  # torch is as fast
    return column == 1 or (column, channel, channels) == (3, 1, 3)


def _is_channels_last(image: torch.Tensor) -> bool:
    """Whether torch gives what it makes of an image of four dimensions that memory format."""
    least = 0
    for dim in (1, 3, 2, 0):
        stride = image.stride(dim)
        if stride < least or (dim == 0 and least == image.stride(1)):
            return False
        least = stride * image.shape[dim]
    return image.stride(1) != 0


def _warp(
    image: torch.Tensor,
    rounding: Rounding,
    grid: Argument = None,
    mode: Argument = None,
    fill: Argument = None,
) -> Result:
    """Samples an image by a grid, which is how all of torchvision's warps end."""
    if type(grid) is not torch.Tensor or type(mode) is not str or mode not in _MODES:
        return None
    if grid.dtype is not torch.float32 or grid.ndim != 4 or len(grid) != 1 or grid.shape[3] != 2:
        return None
    if not (grid.numel() and grid.is_contiguous() and has_known_keys(grid)) or grid.requires_grad:
        return None
    levels = image.dtype is torch.uint8
    if fill is None and not levels:
        return None  # torch is as fast
    values = list(fill) if type(fill) in (list, tuple) else [0.0 if fill is None else fill]
    bounds = (0.0, 255.0) if levels else (-_MOST_NUMBER, _MOST_NUMBER)
    numbers = [each for value in values if (each := _number(value, *bounds)) is not None]
    if len(numbers) != len(values) or len(numbers) not in (1, 3):
        return None
    *leading, channels, _, _ = image.shape
    height, width = grid.shape[1:3]
    # What torchvision blends in place has the share of pixels inside the image as another channel.
    blended = fill is not None and mode == ("nearest" if rounding == "torch_v1" else "bilinear")
    planes = channels + (blended and not levels)
    shape = math.prod(leading), planes, height, width
    out = torch.empty(shape, dtype=image.dtype, device="cpu")
    by = "torch_unfilled" if fill is None else rounding
    colors = numbers * (channels // len(numbers))
    _native.warp_tensor(_memory(image), _memory(grid), _memory(out), mode, colors, by)
    made = out[:, :channels]
    if rounding == "torch_v1" and leading:
        return made
    return made.reshape(*leading, channels, height, width)


def _are_numbers(values: Argument) -> bool:
    if type(values) not in (list, tuple) or len(values) != 3:
        return False
    return all(_number(value, -_MOST_NUMBER, _MOST_NUMBER) is not None for value in values)


def _is_dense(image: torch.Tensor) -> bool:
    return image.stride() in _layouts(image.shape)


@functools.lru_cache(256)
def _layouts(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the strides that native code knows for images of this shape."""
    if len(shape) < 3 or shape[-3] != 3 or min(shape[-2:]) < _LEAST_SIDE:
        return ()
    *leading, _, height, width = shape
    outer: list[int] = []
    stride = 3 * height * width
    for length in reversed(leading):
        outer.insert(0, stride)
        stride *= length
    return (*outer, height * width, width, 1), (*outer, 1, 3 * width, 3)


def has_known_keys(tensor: torch.Tensor) -> bool:
    """Whether it is not of another device, of vmap, or lazily negated."""
    return torch._C._dispatch_keys(tensor).raw_repr() in _dispatch_keys()


@functools.cache
def _dispatch_keys() -> frozenset[int]:
    """Returns the sets of dispatch keys of plain tensors, which those of inference are, too."""
    keys = []
    for inference in (False, True):
        with torch.inference_mode(inference):
            plain = torch.empty(1, device="cpu")
            keys.append(torch._C._dispatch_keys(plain).raw_repr())
    return frozenset(keys)


@dataclass(frozen=True, slots=True)
class Operation:
    """A function of torchvision that native code does.

    Attributes:
        run: called with a plain tensor, the rounding and the other arguments of the function.
        trials: arguments after the image, with which it is compared with torchvision.
        dtypes: of the images.
        takes: whether it does an image at all.
    """

    run: Callable[..., Result]
    trials: tuple[tuple[Any, ...], ...]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.uint8)
    takes: Callable[[torch.Tensor], bool] = _is_dense


def _blend(name: str) -> Operation:
    return Operation(_by_factor(name), ((0.0,), (0.3,), (1,), (1.7,)))


_BLURS = ([3, 3], [0.7, 0.4]), ([5, 9], [3.1, 1.9]), ([13, 11], [0.1, 2.2])
_NORMALIZATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_MODES = ("nearest", "bilinear")
_RESIZES = tuple(
    (size, None, mode, False, None, True)
    for size in ([7, 90], [40, 11], [3, 40], [29, 23])
    for mode in ("bilinear", "bicubic")
)
_GRID = torch.from_numpy(np.random.default_rng(1).uniform(-1.3, 1.3, (1, 23, 19, 2))).float()
_FILLS = (0.0, [0.3, 9.0, 200.0])
OPERATIONS = {
    **{
        f"adjust_{name}": _blend(name)
        for name in ("brightness", "contrast", "saturation", "sharpness")
    },
    "adjust_hue": Operation(_adjust_hue, ((-0.31,), (0.0,), (0.17,))),
    "rgb_to_grayscale": Operation(_rgb_to_grayscale, ((1,), (3,))),
    "gaussian_blur": Operation(_gaussian_blur, _BLURS, takes=_blurs_to_planes),
    "to_dtype": Operation(_to_dtype, ((torch.float32, True),), (torch.uint8,)),
    "normalize": Operation(_normalize, (_NORMALIZATION,), (torch.float32,)),
    "autocontrast": Operation(_autocontrast, ((),)),
    "equalize": Operation(_equalize, ((),), (torch.uint8,)),
    "solarize": Operation(_solarize, ((0.0,), (0.3,), (1,))),
    RESIZE: Operation(_resize, _RESIZES, takes=_has_rows),
    WARP: Operation(_warp, tuple((_GRID, mode, fill) for mode in _MODES for fill in _FILLS)),
}

# Of all images together; with fewer, torch is as fast.
LEAST_PIXELS = {
    **dict.fromkeys((WARP, "adjust_saturation", "adjust_sharpness", "adjust_hue"), 256),
    **dict.fromkeys(("gaussian_blur", "autocontrast", "equalize"), 256),
    **{"rgb_to_grayscale": 1024, RESIZE: 2048, "solarize": 2048},
    **{"adjust_contrast": 4096, "normalize": 4096},
    **{"adjust_brightness": 16384, "to_dtype": 16384},
}

V2 = tuple(name for name in OPERATIONS if name not in (WARP, RESIZE))
"""Functionals of torchvision's v2 whose kernels for tensors, images and videos are replaced."""

V1 = tuple(name for name in OPERATIONS if name not in ("adjust_hue", "to_dtype"))
"""Functions of ``torchvision.transforms._functional_tensor`` that are replaced.

It has no ``to_dtype``, and hue has other strides there.
"""
