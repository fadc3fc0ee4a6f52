"""torchvision's functions for tensors, and whether native code has their levels or floats."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fusionloader import _native
from fusionloader.transforms.plan.arguments import (
    Context,
    NeedsFloats,
    NotCompiled,
    Transform,
    interpolation_name,
    is_unfilled,
)
from fusionloader.transforms.plan.stages import (
    TO_FLOATS,
    Color,
    Convert,
    Filter,
    Fixed,
    Interpolation,
    Operation,
    Plan,
    RandomRotation,
    Resize,
    Rounding,
    Stage,
)

TORCH_FILTERS: dict[Filter, Filter] = {"bilinear": "torch_bilinear", "bicubic": "torch_bicubic"}
FLOAT_FILTERS: dict[Filter, Filter] = {"bilinear": "float_bilinear", "bicubic": "float_bicubic"}
ALIASED_FILTERS: dict[Filter, Filter] = {"bilinear": "float_aliased_bilinear"}
UNFUSED: dict[Rounding, Rounding] = {
    "torch_v1": "torch_v1_unfused",
    "torch_v2": "torch_v2_unfused",
    "torch_unfilled": "torch_unfilled_unfused",
}
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

# The same by operation on floats, also where levels are those for Pillow images. These have no
# rounding; the others are above.
_ON_FLOATS: dict[str, tuple[str, tuple[tuple[Any, ...], ...]]] = {
    "brightness": ("adjust_brightness", _FACTORS),
    "invert": ("invert", ((),)),
    "solarize": ("solarize", ((0.4,),)),
    "channels": ("permute_channels", ()),
}

_MOST_BLURRED = 101  # as in csrc/ops/tensor_blur.hpp
_MOST_BLURRED_OF_IMAGES = 513  # as in csrc/ops/blur.cpp
# Of single channels, torchvision's blends have other levels than native code.
_OF_THREE_CHANNELS = ("contrast", "saturation")
OTHERWISE = "the installed torch rounds otherwise: put it before the conversion"


def rounding_of(step: Transform, context: Context, *names: str) -> Rounding:
    """Returns whose levels or floats the named operations of a transform have to give.

    ``"pillow"`` also if none of them has other levels on tensors.

    Raises:
        NotCompiled: native code does not have them.
        NeedsFloats: it has them, for stages that work on floats.
    """
    rounding: Rounding = "torch_v2" if _is_v2(step) else "torch_v1"
    if context.held == "floats" and context.in_plan:
        if context.channels != 3 or not all(_is_on_floats(name, rounding) for name in names):
            raise NotCompiled("it works on floats: put it before the conversion")
        if not context.on_floats:
            raise NeedsFloats
        return rounding if any(map(_has_rounding_on_floats, names)) else "pillow"
    context.require_levels(same_on_tensors=True)
    if context.held == "tensor" and context.exact and context.channels == 1:
        context.require_levels(not any(name in _OF_THREE_CHANNELS for name in names))
    names = tuple(name for name in names if name in _FUNCTIONS)
    if context.held == "pil" or not context.exact or not names:
        return "pillow"
    if not all(rounds_natively(name, rounding) for name in names):
        raise NotCompiled(OTHERWISE)
    return rounding


def warp_rounding(step: Transform, context: Context) -> Rounding:
    """Returns the rounding of the warps that a transform does.

    Raises:
        NotCompiled: native code does not have the levels or floats that they have on tensors.
        NeedsFloats: it has them, for stages that work on floats.
    """
    filter = interpolation_name(step.interpolation)
    has_filter = filter in ("nearest", "bilinear")
    floats = context.held == "floats" and context.in_plan and has_filter
    if not floats:
        context.require_levels(same_on_tensors=has_filter)
        if context.held == "pil" or not context.exact:
            return "pillow"
    rounding: Rounding = "torch_v2" if _is_v2(step) else "torch_v1"
    name = "perspective" if type(step).__name__ == "RandomPerspective" else "affine"
    if filter == "bilinear" and is_unfilled(step.fill):
        rounding = "torch_unfilled"
    tried: tuple[Rounding, ...] = rounding, UNFUSED[rounding]
    if name == "perspective":
        # Few of its levels show how products are rounded; those of filtered affine maps do.
        tried = tuple(each for each in tried if warps_natively("affine", "bilinear", each))
    # The levels that the nearest filter takes become the floats that it takes of a converted image.
    on_levels = not floats or (filter == "nearest" and not context.on_floats)
    for each in tried:
        if (warps_natively if on_levels else _warps_floats)(name, filter, each):
            if not on_levels and not context.on_floats:
                raise NeedsFloats
            return each
    raise NotCompiled(OTHERWISE)


def _has_rounding_on_floats(name: str) -> bool:
    return name in _FUNCTIONS or name == "brightness"


def _is_v2(step: Transform) -> bool:
    return type(step).__module__.startswith("torchvision.transforms.v2.")


def blur_rounding(step: Transform, context: Context, width: int, height: int) -> Rounding:
    """Returns the rounding of a blur by a kernel of ``height`` x ``width`` pixels.

    Raises:
        NotCompiled: native code does not have the levels or floats that it has on tensors.
        NeedsFloats: it has them, for stages that work on floats.
    """
    on_floats = context.held == "floats" and context.in_plan
    if not on_floats:
        is_known = context.in_plan and _is_v2(step) and context.channels == 3
        context.require_levels(same_on_tensors=is_known)
        if context.held == "pil" or not context.exact:
            if max(width, height) > _MOST_BLURRED_OF_IMAGES:
                raise NotCompiled(f"a kernel of {height} x {width}")
            return "pillow"
    known: tuple[Rounding, ...] = ("torch_v2", "torch_v1")
    for rounding in known:
        if not (_is_v2(step) and context.channels == 3 and _blurs(width, height, rounding)):
            continue
        if on_floats and not context.on_floats:
            raise NeedsFloats
        return rounding
    raise NotCompiled(OTHERWISE)


def run_on_tensor(
    image: torch.Tensor, operation: Operation, as_it_lies: bool = False
) -> torch.Tensor:
    """Returns a tensor after an operation whose last argument is a rounding of torch's.

    Unless it is to be taken ``as_it_lies``, the rounding says how the tensor lies in memory.
    """
    from torchvision.transforms import functional as v1
    from torchvision.transforms.v2 import functional as v2

    name, *arguments, rounding = operation
    if name in ("affine", "perspective"):
        return _warp(image, name, *arguments, rounding=rounding.removesuffix("_unfused"))
    if name == "blur":  # v2's
        width, height, *sigmas = arguments
        blurred: torch.Tensor = v2.gaussian_blur(image, [width, height], sigmas)
        return blurred
    if name == "grayscale":
        arguments = [image.shape[0]]
    if not as_it_lies and rounding != "torch_v2_interleaved":
        image = image.contiguous()
    module = v1 if rounding == "torch_v1" else v2
    function = (_FUNCTIONS.get(name) or _ON_FLOATS[name])[0]
    result: torch.Tensor = getattr(module, function)(image, *arguments)
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


# The levels depend on torch's version, on the processor and on settings, so that they are tried.

_Answer = TypeVar("_Answer")


def _once_for_settings(function: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """Calls a function once for its arguments and torch's settings of products and sums."""

    @functools.cache
    def call(settings: tuple[str, bool, bool], *arguments: Any) -> _Answer:
        return function(*arguments)

    @functools.wraps(function)
    def attempt(*arguments: Any) -> _Answer:
        autocasts = torch.is_autocast_enabled("cpu")
        settings = torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled, autocasts
        return call(settings, *arguments)

    return attempt


@_once_for_settings
def rounds_natively(name: str, rounding: Rounding) -> bool:
    """Whether native code gives the levels that torchvision gives uint8 tensors."""
    return _rounds(name, rounding, _FUNCTIONS[name][1])


@_once_for_settings
def warps_natively(name: str, filter: Interpolation, rounding: Rounding) -> bool:
    """The same of a warp by a filter."""
    return _rounds(name, rounding, _trials(name, filter))


def _trials(name: str, filter: Interpolation) -> tuple[tuple[Any, ...], ...]:
    return tuple(each for each in _FUNCTIONS[name][1] if filter in each)


@_once_for_settings
def grows_natively(rounding: Rounding) -> bool:
    """Whether native code knows the sizes of rotations of tensors that ``expand``."""
    from torchvision.transforms import functional as v1
    from torchvision.transforms.v2 import functional as v2

    rotate = v1.rotate if rounding.startswith("torch_v1") else v2.rotate
    # The first depends on the order of the sums.
    turns = (86, 9, 89.99999), (17, 66, 90.00001), (66, 17, 270.00001), (53, 37, 12.5)
    for width, height, angle in turns:
        for centre in (None, (3.0, 8.0)):
            stage = RandomRotation((angle, angle), "nearest", True, centre, (0, 0, 0), rounding)
            ((*_, size, _),) = _executor(Plan((stage,), None, None, None)).draw(
                0, 0, 0, 0, width, height
            )
            given = torch.tensor(angle, dtype=torch.float32).item()
            image = torch.zeros(3, height, width, dtype=torch.uint8)
            if tuple(rotate(image, given, expand=True, center=centre).shape[:0:-1]) != size:
                return False
    return True


def _rounds(name: str, rounding: Rounding, trials: tuple[tuple[Any, ...], ...]) -> bool:
    is_warp = name in ("affine", "perspective")
    memory = "torch_v2_interleaved" if rounding == "torch_v2" and not is_warp else rounding
    for operation in ((name, *arguments) for arguments in trials):
        for height, width in ((53, 37), (5, 9)):
            levels = _levels(height, width)
            image = torch.from_numpy(levels).permute(2, 0, 1)
            expected = run_on_tensor(image, (*operation, memory))
            found = _run_natively(Fixed((*operation, rounding)), levels, height, width)
            if not np.array_equal(found, expected.permute(1, 2, 0).numpy()):
                return False
    return True


@_once_for_settings
def _is_on_floats(name: str, rounding: Rounding) -> bool:
    """Whether native code gives the floats that torchvision gives float32 tensors."""
    known = _FUNCTIONS.get(name) or _ON_FLOATS.get(name)
    return known is not None and _makes_floats(name, rounding, known[1])


@_once_for_settings
def _warps_floats(name: str, filter: Interpolation, rounding: Rounding) -> bool:
    """The same of a warp by a filter."""
    return _makes_floats(name, rounding, _trials(name, filter))


def _makes_floats(name: str, rounding: Rounding, trials: tuple[tuple[Any, ...], ...]) -> bool:
    rounded = (rounding,) if _has_rounding_on_floats(name) else ()
    table = torch.arange(256).float().div(255).mul(1.5).sub(0.25)
    for arguments in trials:
        for height, width in ((53, 37), (5, 9)):
            levels = _levels(height, width)
            interleaved = table[torch.from_numpy(levels).permute(2, 0, 1).long()]
            for layout, image in (
                ("planar", interleaved.contiguous()),
                ("kept", interleaved.movedim(0, 2).contiguous().movedim(2, 0)),
            ):
                expected = run_on_tensor(image, (name, *arguments, rounding), as_it_lies=True)
                stages = Fixed(("to_floats", layout)), Fixed((name, *arguments, *rounded))
                if _floats(stages, levels, table) != expected.contiguous().numpy().tobytes():
                    return False
    return True


@_once_for_settings
def _blurs(width: int, height: int, rounding: Rounding) -> bool:
    """Whether native code blurs as v2 by a kernel of that size, by whatever sigma."""
    if max(width, height) > _MOST_BLURRED:
        return False
    levels = _levels(height + 9, width + 14)
    interleaved = torch.from_numpy(levels).permute(2, 0, 1)
    table = torch.arange(256).float().div(255)
    for sigma in torch.logspace(-1.3, 1.3, 24).tolist():
        operation = ("blur", width, height, sigma, sigma, rounding)
        found = _floats((TO_FLOATS, Fixed(operation)), levels, table)
        for image in (interleaved, interleaved.contiguous()):
            expected = run_on_tensor(image.float().div(255), operation)
            if found != expected.contiguous().numpy().tobytes():
                return False
        rounded = _run_natively(Fixed(operation), levels, *levels.shape[:2])
        if not np.array_equal(rounded, run_on_tensor(interleaved, operation).permute(1, 2, 0)):
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
def resizes_floats(name: Filter, antialias: bool = True) -> bool:
    """Whether torch resizes float32 tensors with the arithmetic of native code."""
    filters = FLOAT_FILTERS if antialias else ALIASED_FILTERS
    if name not in filters:
        return False
    levels = _levels(53, 37)
    interleaved = torch.from_numpy(levels).permute(2, 0, 1).float().div(255)
    table = torch.arange(256).float().div(255)
    sizes = [(23, 51), (64, 19), (5, 7)]
    # Of aliased images whose sides add up to more, torch has another kernel for several threads.
    sizes += [(110, 90)] if antialias or torch.get_num_threads() == 1 else []
    for height, width in sizes:
        size, options = (height, width), {"align_corners": False, "antialias": antialias}
        found = _floats((TO_FLOATS, Resize(height, width, filters[name])), levels, table)
        for image in (interleaved, interleaved.contiguous()):
            expected = torch.nn.functional.interpolate(image[None], size, mode=name, **options)[0]
            if found != expected.contiguous().numpy().tobytes():
                return False
    return True


def _floats(stages: tuple[Stage, ...], levels: npt.NDArray[np.uint8], table: torch.Tensor) -> bytes:
    """Returns the bytes of what native stages make of levels, which become floats by a table."""
    plan = Plan(stages, Convert("float32", table.repeat(3).numpy().tobytes()), None, None)
    pixels, _ = _executor(plan).pixels_of_pixels(levels.data, 0, 0, 0, 0)
    return bytes(pixels)


def _levels(height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(1).integers(20, 256, (height, width, 3), np.uint8)


def _run_natively(
    stage: Stage, levels: npt.NDArray[np.uint8], height: int, width: int
) -> npt.NDArray[Any]:
    executor = _executor(Plan((stage,), None, height, width))
    pixels, shape = executor.pixels_of_pixels(levels.data, 0, 0, 0, 0)
    return np.frombuffer(pixels, np.uint8).reshape(*shape, 3)


def _executor(plan: Plan) -> _native.Executor:
    convert = plan.convert
    return _native.Executor(
        stages=plan.stages,
        convert=(convert.element_type, convert.table) if convert else None,
        channels=3,
        result_channels=3,
        height=plan.height or 0,
        width=plan.width or 0,
        fast_decode=False,
        strict=True,
        vertical_first="never",  # torch's filters never are
    )
