"""Images and operations that the tests of device programs share, and the comparison."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fusionloader import _native
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Operation, Plan

Bytes = NDArray[np.uint8]
FILL = (128, 7, 255)
SHAPES = [(1, 1), (1, 40), (40, 1), (2, 2), (2, 9), (3, 3), (31, 17), (70, 131)]


def picture(kind: str, height: int, width: int, channels: int) -> Bytes:
    rng = np.random.default_rng(height * 1000 + width)
    noise = rng.integers(0, 256, (height, width, channels))
    y, x = np.mgrid[:height, :width]
    smooth = np.stack([40 + 3 * x, 200 - 2 * y, 90 + x + y][:channels], axis=2)
    pixels = {
        "noise": noise,
        "smooth": smooth + noise // 20,
        "two_levels": 60 + 100 * (noise > 200),
        "constant": np.broadcast_to(np.array([17, 250, 99])[:channels], noise.shape),
    }[kind]
    return np.ascontiguousarray(np.clip(pixels, 0, 255).astype(np.uint8))


PICTURES = [
    picture(kind, *shape, channels)
    for kind in ("noise", "smooth", "two_levels", "constant")
    for shape in SHAPES
    for channels in (3, 1)
]


def pixel_plan(channels: int) -> Plan:
    """No conversion, and a result of any size."""
    return Plan((), None, None, None, "exact", channels, channels)


def native(pixels: Bytes, operations: list[Operation]) -> Bytes:
    channels = pixels.shape[2]
    made, shape = make_executor(pixel_plan(channels)).pixels_with(pixels, operations)
    return np.frombuffer(made, np.uint8).reshape(*shape, channels)


def run_on_host(
    plan: Plan, pixels: Bytes, operations: list[Operation], out: Bytes, lanes: int = 1
) -> tuple[int, int]:
    """Runs a program by the kernel's body; returns height and width of the result.

    ``lanes`` share the work; the result is the same for any number.
    """
    return _native.run_device_program_on_host(make_executor(plan), pixels, operations, out, lanes)


def by_device_body(pixels: Bytes, operations: list[Operation], lanes: int, room: int) -> Bytes:
    channels = pixels.shape[2]
    out = np.full(room, 201, np.uint8)
    height, width = run_on_host(pixel_plan(channels), pixels, operations, out, lanes)
    return out[: height * width * channels].reshape(height, width, channels)


def check(pixels: Bytes, operations: list[Operation], lanes: tuple[int, ...] = (1, 3)) -> None:
    """The body of the kernel gives the native executor's pixels with any number of lanes."""
    expected = native(pixels, operations)
    for count in lanes:
        got = by_device_body(pixels, operations, count, expected.size)
        assert got.shape == expected.shape, (operations, count)
        different = int((got != expected).sum())
        assert different == 0, (pixels.shape, operations, count, different)


FACTORS = [0.0, 0.3, 0.999, 1.0, 1.5, 3.7, 1e9, -2.0]
HUES = [-0.5, -0.123, -0.004, 0.0, 0.003, 0.25, 0.37, 0.5]
COLORS: dict[str, list[Operation]] = {
    **{
        name: [(name, factor) for factor in FACTORS]
        for name in ("brightness", "contrast", "saturation", "sharpness")
    },
    "hue": [("hue", hue) for hue in HUES],
    "posterize": [("posterize", bits) for bits in range(9)],
    "solarize": [("solarize", at) for at in (-1, 0, 0.5, 26.6, 127.5, 128, 254.5, 255, 255.5, 256)],
    "solarize_add": [("solarize_add", add) for add in (-20, 0, 10, 110, 255, 300)],
    "invert": [("invert",)],
    "autocontrast": [("autocontrast",)],
    "equalize": [("equalize",)],
    "grayscale": [("grayscale",)],
    "box_blur": [("box_blur", radius) for radius in (0.0, 0.01, 0.5, 1.37, 5.5, 500.0)],
    "cutout": [
        ("cutout", *box, FILL)
        for box in ((0, 0, 1, 1), (3, 5, 9, 4), (60, 60, 99, 99), (-4, -4, 8, 8), (5, 5, 0, 3))
    ],
}
MATRICES = [
    (1, 0, -3, 0, 1, 2),
    (1, 0, 1000, 0, 1, 0),
    (1, 0, -0.3, 0, 1, 0.7),
    (0.37, 0, 3.2, 0, 1.9, -4),
    (1.1, 0, 0.1, 0, 0.7, 0.3),
    (-1, 0, 17, 0, -1, 31),
    (-1, 0, 0.6, 0, -1, 0.6),
    (1, 0.2, 0, 0, 1, 5),
    (1, 0, 3, 0.4, 1, 0),
    (0.7, 0.7, -3, -0.7, 0.7, 9),
    (1, 0.1, 40000, 0.1, 1, 0),
    (3000, 1, -20000, 1, 900, -30000),
    (70000, 1, -3, 2, 900, 5),
    (0.001, 0.01, 33000, 0.01, 0.001, 3),
    (1e300, 1e300, -1e308, 1, 1, 0),
    (float("nan"), 0, 0, 0, 1, 0),
]
PERSPECTIVES = [
    (1, 0, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, 0, 0, 0, -2, 0),
    (1, 0, 2, 0, 1, 1, -0.2, 0.1),
    (0.9, 0.1, 1.5, -0.05, 1.1, 0.4, 0.002, -0.001),
]
MODES = ("nearest", "bilinear", "bicubic")
ANGLES = [0, 0.5, 30, -4.5, 90, 180, 270, 360, -90, 451.25, -1e-20]


def warps() -> Iterator[Operation]:
    for mode in MODES:
        yield from (("affine", matrix, mode, FILL) for matrix in MATRICES)
        yield from (("perspective", numbers, mode, FILL) for numbers in PERSPECTIVES)
        for angle in ANGLES:
            yield from (("rotate", angle, mode, expand, None, FILL) for expand in (False, True))
            yield ("rotate", angle, mode, False, (5.5, 11.0), FILL)


WINDOWS: list[list[Operation]] = [
    [],
    [("hflip",)],
    [("vflip",), ("hflip",)],
    [("crop", -3, 2, 9, 9, FILL), ("hflip",)],
    [("hflip",), ("crop", 0, 0, 1, 1, FILL), ("vflip",)],
    [("crop", -3, -3, 12, 12, FILL), ("crop", 2, 2, 20, 5, (1, 2, 3))],
    [("crop", 500, 0, 4, 4, FILL), ("invert",), ("crop", -1, -1, 6, 6, FILL), ("vflip",)],
]
BORDERS = [
    ("pad", *sides, mode, FILL)
    for sides in ((0, 0, 0, 0), (4, 1, 2, 3), (0, 5, 0, 0), (50, 70, 90, 11), (-3, 2, 1, -2))
    for mode in ("constant", "edge", "reflect", "symmetric")
]
