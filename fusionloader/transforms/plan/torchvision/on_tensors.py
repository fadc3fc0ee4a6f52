"""torchvision's functions for uint8 tensors, and whether native code has their levels."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fusionloader import _native
from fusionloader.transforms.plan.arguments import (
    Context,
    NotCompiled,
    Transform,
    interpolation_name,
    is_unfilled,
)
from fusionloader.transforms.plan.stages import (
    TO_FLOATS,
    Color,
    ElementType,
    Filter,
    Fixed,
    Operation,
    Resize,
    Rounding,
    Stage,
)

TORCH_FILTERS: dict[Filter, Filter] = {"bilinear": "torch_bilinear", "bicubic": "torch_bicubic"}
FLOAT_FILTERS: dict[Filter, Filter] = {"bilinear": "float_bilinear", "bicubic": "float_bicubic"}
_FACTORS = ((0.3,), (0.7,), (1.7,))
_MATRICES = (
    (0.93, -0.21, 3.4, 0.17, 1.11, -2.3),
    (1.0, 0.3, 5.0, 0.0, 1.0, 0.0),
    (0.5, 0.5, 0.0, -0.5, 0.5, 0.0),
)
_COEFFICIENTS = (0.9, 0.2, -1.3, -0.1, 1.2, 0.8, 1e-3, -2e-3)
_WAYS = tuple((mode, (7, 80, 250)) for mode in ("nearest", "bilinear"))
# By operation whose levels are not those for Pillow images: torchvision's function, and arguments
# to try.
_FUNCTIONS: dict[str, tuple[str, tuple[tuple[Any, ...], ...]]] = {
    "contrast": ("adjust_contrast", _FACTORS),
    "saturation": ("adjust_saturation", _FACTORS),
    "sharpness": ("adjust_sharpness", _FACTORS),
    "hue": ("adjust_hue", ((-0.31,), (0.0,), (0.17,))),
    "autocontrast": ("autocontrast", ((),)),
    "grayscale": ("rgb_to_grayscale", ((),)),
    "affine": ("affine", tuple((matrix, *way) for matrix in _MATRICES for way in _WAYS)),
    "perspective": ("perspective", tuple((_COEFFICIENTS, *way) for way in _WAYS)),
}

_OTHERWISE = "the installed torch rounds otherwise: put it before the conversion"


def rounding_of(step: Transform, context: Context, *names: str) -> Rounding:
    """Returns whose levels the named operations of a transform have to give.

    ``"pillow"`` also if none of them has other levels on tensors.

    Raises:
        NotCompiled: native code does not have them.
    """
    context.require_levels(same_on_tensors=True)
    names = tuple(name for name in names if name in _FUNCTIONS)
    if context.held == "pil" or not context.exact or not names:
        return "pillow"
    rounding: Rounding = "torch_v2" if _is_v2(step) else "torch_v1"
    if not all(rounds_natively(name, rounding) for name in names):
        raise NotCompiled(_OTHERWISE)
    return rounding


def warp_rounding(step: Transform, context: Context) -> Rounding:
    """Returns the rounding of the warps that a transform does.

    Raises:
        NotCompiled: native code does not have the levels that they have on tensors.
    """
    filtered = interpolation_name(step.interpolation) in ("nearest", "bilinear")
    context.require_levels(same_on_tensors=filtered)
    if context.held == "pil" or not context.exact:
        return "pillow"
    rounding: Rounding = "torch_v2" if _is_v2(step) else "torch_v1"
    if is_unfilled(step.fill):
        rounding = "torch_unfilled"
    name = "perspective" if type(step).__name__ == "RandomPerspective" else "affine"
    if not rounds_natively(name, rounding):
        raise NotCompiled(_OTHERWISE)
    return rounding


def _is_v2(step: Transform) -> bool:
    return type(step).__module__.startswith("torchvision.transforms.v2.")


def run_on_tensor(image: torch.Tensor, operation: Operation) -> torch.Tensor:
    """Returns a uint8 tensor after an operation whose last argument is a rounding of torch's."""
    from torchvision.transforms import functional as v1
    from torchvision.transforms.v2 import functional as v2

    name, *arguments, rounding = operation
    if name in ("affine", "perspective"):
        return _warp(image, name, *arguments, rounding=rounding)
    if name == "grayscale":
        arguments = [image.shape[0]]
    if rounding != "torch_v2_interleaved":
        image = image.contiguous()
    module = v1 if rounding == "torch_v1" else v2
    result: torch.Tensor = getattr(module, _FUNCTIONS[name][0])(image, *arguments)
    return result


def _warp(
    image: torch.Tensor,
    name: str,
    numbers: tuple[float, ...],
    interpolation: str,
    fill: Color,
    size: tuple[int, int] | None = None,
    *,
    rounding: str,
) -> torch.Tensor:
    from torchvision.transforms import _functional_tensor as v1
    from torchvision.transforms.v2.functional import _geometry as v2

    height, width = image.shape[-2:]
    new_width, new_height = size or (width, height)
    if name == "affine":
        make_grid = v1._gen_affine_grid if rounding == "torch_v1" else v2._affine_grid
        theta = torch.tensor(numbers).reshape(1, 2, 3)
        grid = make_grid(theta, w=width, h=height, ow=new_width, oh=new_height)
    else:
        make_grid = (v1 if rounding == "torch_v1" else v2)._perspective_grid
        grid = make_grid(list(numbers), width, height, torch.float32, image.device)
    apply = (v1 if rounding == "torch_v1" else v2)._apply_grid_transform
    colors = [float(level) for level in fill[: image.shape[0]]]
    warped: torch.Tensor = apply(
        image, grid, interpolation, None if rounding == "torch_unfilled" else colors
    )
    return warped


def has_own_rounding(name: str) -> bool:
    """Whether an operation has other levels on uint8 tensors than on Pillow images."""
    return name in _FUNCTIONS


# The levels depend on torch's version and on the processor, so that they are tried.


@functools.cache
def rounds_natively(name: str, rounding: Rounding) -> bool:
    """Whether native code gives the levels that torchvision gives uint8 tensors."""
    memory = "torch_v2_interleaved" if rounding == "torch_v2" else rounding
    for operation in ((name, *arguments) for arguments in _FUNCTIONS[name][1]):
        for height, width in ((53, 37), (5, 9)):
            levels = _levels(height, width)
            image = torch.from_numpy(levels).permute(2, 0, 1)
            expected = run_on_tensor(image, (*operation, memory))
            found = _run_natively(Fixed((*operation, rounding)), levels, height, width)
            if not np.array_equal(found, expected.permute(1, 2, 0).numpy()):
                return False
    return True


@functools.cache
def resizes_levels(name: Filter) -> bool:
    """Whether torchvision resizes uint8 tensors without floats, with the weights of native code."""
    if name not in TORCH_FILTERS:
        return False
    from torchvision.transforms import v2

    levels = _levels(53, 37)
    image = torch.from_numpy(levels).permute(2, 0, 1)
    for height, width in ((23, 51), (64, 19)):
        expected = v2.Resize((height, width), v2.InterpolationMode(name))(image)
        found = _run_natively(Resize(height, width, TORCH_FILTERS[name]), levels, height, width)
        if not np.array_equal(found, expected.permute(1, 2, 0).numpy()):
            return False
    return True


@functools.cache
def resizes_floats(name: Filter) -> bool:
    """Whether torch resizes float32 tensors with the arithmetic of native code."""
    if name not in FLOAT_FILTERS:
        return False
    levels = _levels(53, 37)
    interleaved = torch.from_numpy(levels).permute(2, 0, 1).float().div(255)
    table = torch.arange(256).float().div(255).repeat(3).numpy().tobytes()
    for height, width in ((23, 51), (64, 19), (5, 7)):
        size, options = (height, width), {"align_corners": False, "antialias": True}
        stages = TO_FLOATS, Resize(height, width, FLOAT_FILTERS[name])
        executor = _executor(stages, height, width, ("float32", table))
        pixels, _ = executor.pixels_of_pixels(levels.data, 0, 0, 0, 0)
        for image in (interleaved, interleaved.contiguous()):
            expected = torch.nn.functional.interpolate(image[None], size, mode=name, **options)[0]
            if pixels != expected.contiguous().numpy().tobytes():
                return False
    return True


def _levels(height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(1).integers(20, 256, (height, width, 3), np.uint8)


def _run_natively(
    stage: Stage, levels: npt.NDArray[np.uint8], height: int, width: int
) -> npt.NDArray[Any]:
    executor = _executor((stage,), height, width, None)
    pixels, shape = executor.pixels_of_pixels(levels.data, 0, 0, 0, 0)
    return np.frombuffer(pixels, np.uint8).reshape(*shape, 3)


def _executor(
    stages: tuple[Stage, ...], height: int, width: int, convert: tuple[ElementType, bytes] | None
) -> _native.Executor:
    return _native.Executor(
        stages=stages,
        convert=convert,
        channels=3,
        result_channels=3,
        height=height,
        width=width,
        fast_decode=False,
        strict=True,
        vertical_first_allowed=False,  # torch's filters never are
    )
