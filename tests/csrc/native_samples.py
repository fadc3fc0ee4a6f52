"""Images, files and reference results that the tests of this folder share."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
import torchvision.transforms.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageFile

from fusionloader import _native
from fusionloader.transforms.plan.stages import Convert, ElementType, Plan, Stage

Bytes = NDArray[np.uint8]

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
RESAMPLING = {
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
FLIPS = {"hflip": Image.Transpose.FLIP_LEFT_RIGHT, "vflip": Image.Transpose.FLIP_TOP_BOTTOM}
SIMD_LEVELS = _native.simd_levels()
# Pillow's room for a part of an optimised file, too little for noise at quality 100.
ImageFile.MAXBLOCK = 1 << 22


def photo(width: int, height: int, seed: int, colorful: bool = True) -> Image.Image:
    """Smooth blobs, strong edges and noise, so that every resampling error shows."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // 9 + 2, width // 9 + 2, 3), dtype=np.uint8)
    base = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(base).astype(np.int16) + rng.integers(-30, 30, (height, width, 3))
    pixels[:, width // 2 :: 7] = 255 * rng.integers(0, 2, 3)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    return image if colorful else image.convert("L")


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(image: Image.Image, **options: Any) -> bytes:
    return saved(image, "JPEG", **{"quality": 88, **options})


def pillow_pixels(encoded: bytes) -> Bytes:
    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image.convert("RGB"))


def levels_table(convert: Any, element_type: ElementType) -> Convert:
    """The table of ``convert``, a function from a uint8 CHW tensor to the final CHW tensor."""
    levels = torch.arange(256, dtype=torch.uint8).repeat(3, 1).reshape(3, 1, 256)
    raw = convert(levels).contiguous().view(torch.uint8)
    return Convert(element_type, raw.numpy().tobytes())


def normalised(levels: torch.Tensor) -> torch.Tensor:
    return F.normalize(levels.to(torch.float32).div(255), MEAN, STD)


def pixel_plan(*stages: Stage, height: int | None = None, width: int | None = None) -> Plan:
    return Plan(stages, None, height, width)


def plan_for_size(height: int, width: int) -> Plan:
    """No stages: for explicit parameters whose result has that size."""
    return pixel_plan(height=height, width=width)


def apply(image: Image.Image, parameters: list[tuple[Any, ...]]) -> Image.Image:
    """What the operations mean, done by Pillow."""
    for name, *values in parameters:
        if name == "crop":
            x, y, width, height, fill = values
            canvas = Image.new("RGB", (width, height), tuple(fill))
            canvas.paste(image, (-x, -y))
            image = canvas
        elif name == "resize":
            width, height, kind, *box = values
            image = image.resize((width, height), RESAMPLING[kind], *box)
        elif name == "reduce":
            image = image.reduce(tuple(values))
        else:
            image = image.transpose(FLIPS[name])
    return image


def frame_of(encoded: bytes) -> int:
    """Where the frame's segment begins, of a file of three components."""
    frames = (b"\xff\xc0\x00\x11\x08", b"\xff\xc2\x00\x11\x08")
    return next(i for i in range(len(encoded)) if encoded[i : i + 5] in frames)


def with_sampling(encoded: bytes, sampling: int) -> bytes:
    """The file with the luma's sampling factors replaced: other block layout, no damage."""
    at = frame_of(encoded)
    return encoded[: at + 11] + bytes([sampling]) + encoded[at + 12 :]


def relaid(image: Image.Image, sampling: int, options: dict) -> bytes:
    """A JPEG of the wanted size and layout, its coefficients from a 4:2:x scan that has enough."""
    h, v = sampling >> 4, sampling & 15
    subsampling, donor_sampling = {2: (1, 0x21), 4: (2, 0x22)}[h * v]
    units_x, units_y = -(-image.width // (8 * h)), -(-image.height // (8 * v))
    donor_h, donor_v = donor_sampling >> 4, donor_sampling & 15
    donor_image = image.resize((units_x * 8 * donor_h, units_y * 8 * donor_v))
    encoded = jpeg(donor_image, subsampling=subsampling, **options)
    at = frame_of(encoded)
    size = image.height.to_bytes(2, "big") + image.width.to_bytes(2, "big")
    encoded = encoded[: at + 5] + size + encoded[at + 9 :]
    return with_sampling(encoded, sampling)
