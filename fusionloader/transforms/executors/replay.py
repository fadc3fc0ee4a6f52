"""Drawn operations by torchvision on Pillow images: the reference of the native code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageFilter
from torchvision.transforms import InterpolationMode, functional
from torchvision.transforms import _functional_pil as functional_pil
from torchvision.transforms.v2 import functional as functional_v2

from fusionloader.transforms.plan.stages import Operation
from fusionloader.transforms.plan.torchvision.on_tensors import run_on_tensor


def replay(image: Image.Image, operations: Sequence[Operation]) -> Image.Image:
    """Returns the image after the operations of ``CompiledPlan.draw``, applied by torchvision.

    ``"erase"``, which works on converted results, is left out. ``"solarize_add"`` and ``"cutout"``,
    which torchvision does not have, are applied by definition.
    """
    for name, *arguments in operations:
        if arguments and str(arguments[-1]).startswith(("torch_v", "torch_unfilled")):
            image = _on_tensor(image, (name, *arguments))
        elif name != "erase":
            image = OPERATIONS[name](image, *arguments)
    return image


def _crop(
    image: Image.Image, x: int, y: int, width: int, height: int, fill: tuple[int, int, int]
) -> Image.Image:
    left, top = max(-x, 0), max(-y, 0)
    right, bottom = max(x + width - image.width, 0), max(y + height - image.height, 0)
    if left or top or right or bottom:
        padding = [left, top, right, bottom]
        image = functional.pad(image, padding, _fill(image, fill))
        x, y = x + left, y + top
    return image.crop((x, y, x + width, y + height))


def _on_tensor(image: Image.Image, operation: Operation) -> Image.Image:
    changed = run_on_tensor(functional_v2.pil_to_tensor(image), operation)
    result: Image.Image = functional_v2.to_pil_image(changed)
    return result


def _fill(image: Image.Image, fill: tuple[int, int, int]) -> Any:
    return fill[0] if image.mode == "L" else tuple(fill)


def _resize(
    image: Image.Image,
    width: int,
    height: int,
    filter: str,
    box: tuple[float, float, float, float] | None = None,
) -> Image.Image:
    if filter.startswith(("torch_", "float_")):
        library, _, name = filter.partition("_")
        resize = functional.resize if library == "float" else functional_v2.resize
        resized = resize(
            functional_v2.pil_to_tensor(image),
            [height, width],
            InterpolationMode(name),
            antialias=True,
        )
        replayed: Image.Image = functional_v2.to_pil_image(resized)
        return replayed
    return image.resize((width, height), Image.Resampling[filter.upper()], box)


def _affine(
    image: Image.Image, matrix: Sequence[float], interpolation: str, fill: tuple[int, int, int]
) -> Image.Image:
    resample = Image.Resampling[interpolation.upper()]
    result: Image.Image = functional_pil.affine(image, matrix, resample, _fill(image, fill))
    return result


def _perspective(
    image: Image.Image,
    coefficients: Sequence[float],
    interpolation: str,
    fill: tuple[int, int, int],
) -> Image.Image:
    resample = Image.Resampling[interpolation.upper()]
    result: Image.Image = functional_pil.perspective(
        image, coefficients, resample, _fill(image, fill)
    )
    return result


def _rotate(
    image: Image.Image,
    angle: float,
    interpolation: str,
    expand: bool,
    centre: list[float] | None,
    fill: tuple[int, int, int],
) -> Image.Image:
    mode = InterpolationMode(interpolation)
    result: Image.Image = functional.rotate(image, angle, mode, expand, centre, _fill(image, fill))
    return result


def _pad(
    image: Image.Image,
    left: int,
    top: int,
    right: int,
    bottom: int,
    mode: str,
    fill: tuple[int, int, int],
) -> Image.Image:
    sides = [left, top, right, bottom]
    result: Image.Image = functional.pad(image, sides, _fill(image, fill), mode)
    return result


def _cutout(
    image: Image.Image, x: int, y: int, width: int, height: int, fill: tuple[int, int, int]
) -> Image.Image:
    image = image.copy()
    image.paste(_fill(image, fill), (x, y, x + width, y + height))
    return image


def _solarize_add(image: Image.Image, add: float) -> Image.Image:
    table = [min(255, level + int(add)) if level < 128 else level for level in range(256)]
    return image.point(table * len(image.getbands()))


def _look_up(image: Image.Image, tables: bytes) -> Image.Image:
    count = 256 * len(image.getbands())
    return image.point(list((tables * 3)[:count]))


def _select_channels(image: Image.Image, *channels: int) -> Image.Image:
    bands = image.split()
    return Image.merge("RGB", [bands[each] for each in channels]) if len(bands) == 3 else image


def _posterize(image: Image.Image, bits: int) -> Image.Image:
    if bits == 0:  # black; Pillow 13.0 and later raise
        return Image.new(image.mode, image.size)
    result: Image.Image = functional.posterize(image, bits)
    return result


def _grayscale(image: Image.Image) -> Image.Image:
    result: Image.Image = functional.rgb_to_grayscale(image, len(image.getbands()))
    return result


def _mix(
    image: Image.Image,
    weight: float,
    weights: Sequence[float],
    chains: Sequence[Sequence[Operation]],
    mixing: str,
) -> Image.Image:
    if mixing == "successive":
        mixed_image = image
        for part, chain in zip(weights, chains, strict=True):
            mixed_image = Image.blend(mixed_image, replay(image, chain), part)
        return mixed_image
    mixed = np.float32(weight if mixing == "sum" else 0) * np.asarray(image, dtype=np.float32)
    for part, chain in zip(weights, chains, strict=True):
        mixed += np.float32(part) * np.asarray(replay(image, chain), dtype=np.float32)
    result = Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8))
    return result if mixing == "sum" else Image.blend(image, result, weight)


OPERATIONS: dict[str, Callable[..., Image.Image]] = {
    "crop": _crop,
    "resize": _resize,
    "reduce": lambda image, columns, rows: image.reduce((columns, rows)),
    "hflip": functional.hflip,
    "vflip": functional.vflip,
    "brightness": functional.adjust_brightness,
    "contrast": functional.adjust_contrast,
    "saturation": functional.adjust_saturation,
    "hue": functional.adjust_hue,
    "sharpness": functional.adjust_sharpness,
    "posterize": _posterize,
    "solarize": functional.solarize,
    "solarize_add": _solarize_add,
    "invert": functional.invert,
    "autocontrast": functional.autocontrast,
    "equalize": functional.equalize,
    "grayscale": _grayscale,
    "lookup": _look_up,
    "channels": _select_channels,
    "blur": lambda image, width, height, x, y: functional.gaussian_blur(
        image, [width, height], [x, y]
    ),
    "box_blur": lambda image, radius: image.filter(ImageFilter.GaussianBlur(radius)),
    "affine": _affine,
    "perspective": _perspective,
    "rotate": _rotate,
    "pad": _pad,
    "cutout": _cutout,
    "mix": _mix,
}
