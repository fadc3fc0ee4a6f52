"""Operations with usual, extreme and impossible arguments."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

FILTERS = ("box", "bilinear", "hamming", "bicubic", "lanczos")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
PAD_MODES = ("constant", "edge", "reflect", "symmetric")
EXTREME_REALS = (0.0, -0.0, 1e-300, -1e-40, 1e6, -1e9, 3e38, 1e300, -1e308)
EXTREME_REALS += (float("inf"), float("-inf"), float("nan"))
EXTREME_WHOLES = (0, -1, 255, 256, 32767, 65536, 1 << 20, (1 << 20) + 1, 1 << 24, 2**31 - 1)
EXTREME_WHOLES += (-(2**31), 2**31, -(1 << 20), 2**40)
FACTORS = ("brightness", "contrast", "saturation", "sharpness", "hue", "posterize", "solarize")
FACTORS += ("solarize_add",)
ROUNDED = ("contrast", "saturation", "sharpness", "hue", "autocontrast", "grayscale")
ROUNDINGS = ("pillow", "torch_v1", "torch_v2", "torch_v2_interleaved")
PLAIN = ("invert", "autocontrast", "equalize", "grayscale")


def real(random: Random, low: float = -2.0, high: float = 3.0) -> float:
    return random.choice(EXTREME_REALS) if random.random() < 0.12 else random.uniform(low, high)


def whole(random: Random, low: int = -3, high: int = 70) -> int:
    return random.choice(EXTREME_WHOLES) if random.random() < 0.03 else random.randint(low, high)


def fill(random: Random) -> tuple[int, int, int]:
    return (random.randrange(256), random.randrange(256), random.randrange(256))


def matrix(random: Random, count: int) -> tuple[float, ...]:
    """Near the identity or anywhere; some of its numbers are extreme."""
    if count == 6:
        made = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    else:
        made = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    for place in range(count):
        if random.random() < 0.6:
            span = 40.0 if place in (2, 5) else 0.01 if place > 5 else 1.5
            made[place] += real(random, -span, span)
    if random.random() < 0.1:
        made[random.choice((2, 5))] = random.choice((32767.5, -32768.0, 40000.0, 1e9))
    return tuple(made)


def pixels(random: Random, channels: int | None = None) -> np.ndarray:
    """An image of its own memory, mostly small; some are strips."""
    sides = (1, 1, 2, 3, 5, 16, 17, 31, 64, 65)
    height, width = random.choice(sides), random.choice(sides)
    if random.random() < 0.02:
        height, width = random.choice(((1, 70000), (70000, 1), (3, 5000)))
    channels = channels or random.choice((1, 3))
    kind = random.random()
    count = height * width * channels
    if kind < 0.2:
        data = np.full(count, random.randrange(256), np.uint8)
    else:
        data = np.frombuffer(random.randbytes(count), np.uint8).copy()
        if kind < 0.4:
            data = np.where(data < 128, 0, 255).astype(np.uint8)
    return data.reshape(height, width, channels)


def operation(random: Random, depth: int = 0) -> tuple[Any, ...]:
    kinds = ("crop", "crop", "resize", "resize", "flip", "factor", "factor", "plain", "blur")
    kinds += ("affine", "perspective", "rotate", "pad", "cutout", "erase", "mix", "box_blur")
    kinds += ("reduce", "lookup", "channels")
    kind = random.choice(kinds)
    interpolation = random.choice(INTERPOLATIONS)
    if kind == "flip":
        return (random.choice(("hflip", "vflip")),)
    rounding = (random.choice(ROUNDINGS),) if random.random() < 0.3 else ()
    if kind == "plain":
        name = random.choice(PLAIN)
        return (name, *(rounding if name in ROUNDED else ()))
    if kind == "factor":
        name = random.choice(FACTORS)
        rounding = rounding if name in ROUNDED else ()
        return (name, real(random, -1.0, 260.0 if random.random() < 0.3 else 2.0), *rounding)
    if kind in ("crop", "cutout"):
        corner = whole(random, -20), whole(random, -20)
        return (kind, *corner, whole(random), whole(random), fill(random))
    if kind == "resize":
        box = (tuple(real(random, -1, 40) for _ in range(4)),) if random.random() < 0.3 else ()
        return ("resize", whole(random, 0), whole(random, 0), random.choice(FILTERS), *box)
    if kind == "reduce":
        return ("reduce", whole(random, 0, 9), whole(random, 0, 9))
    if kind == "lookup":
        return ("lookup", random.randbytes(random.choice((256, 768, 768, 255))))
    if kind == "channels":
        return ("channels", *(whole(random, 0, 3) for _ in range(3)))
    if kind == "blur":
        sizes = (random.choice((1, 3, 5, 23, 513)), random.choice((1, 3, 7, whole(random))))
        return ("blur", *sizes, real(random, 0.05, 4.0), real(random, 0.05, 4.0))
    if kind == "box_blur":
        return ("box_blur", real(random, 0.0, 30.0))
    if kind == "affine":
        rounding = rounding if interpolation == "nearest" else ()
        return ("affine", matrix(random, 6), interpolation, fill(random), *rounding)
    if kind == "perspective":
        return ("perspective", matrix(random, 8), interpolation, fill(random))
    if kind == "rotate":
        return ("rotate", *rotation(random, interpolation))
    if kind == "pad":
        sides = [whole(random, -9, 40) for _ in range(4)]
        return ("pad", *sides, random.choice(PAD_MODES), fill(random))
    if kind == "erase":
        box = [whole(random, 0, 20) for _ in range(4)]
        values = random.randbytes(random.choice((0, 0, 3, 12)))
        return ("erase", *box, values, random.random() < 0.5, random.getrandbits(64))
    count = random.randint(0, 3)
    chains = [
        [operation(random, depth + 1) for _ in range(random.randint(0, 2))] if depth < 2 else []
        for _ in range(count)
    ]
    weights = [real(random, 0, 1) for _ in range(count + (random.random() < 0.05))]
    return (
        "mix",
        real(random, 0, 1),
        weights,
        chains,
        random.choice(("sum", "over", "successive")),
    )


def rotation(random: Random, interpolation: str) -> tuple[Any, ...]:
    """The arguments of a rotation, right angles among them."""
    right = random.choice((0.0, 90.0, 180.0, 270.0, -90.0, 360.0))
    angle = right if random.random() < 0.3 else real(random, -400, 400)
    centre = (real(random, -50, 50), real(random, -50, 50)) if random.random() < 0.3 else None
    return (angle, interpolation, random.random() < 0.5, centre, fill(random))
