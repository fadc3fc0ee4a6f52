"""Images, and every operation of a plan with a range of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fusionloader.cli.dead_leaves import paint
from fusionloader.transforms.plan.stages import Operation

# The cases of one row for an image of a width and a height.
Cases = Callable[[int, int], list[Operation]]

FILLS = ((0, 0, 0), (12, 200, 77))
FILTERS = ("box", "bilinear", "hamming", "bicubic", "lanczos")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
TABLES = bytes((level * level // (255 + 60 * way)) for way in range(3) for level in range(256))
MIXINGS = ("sum", "over", "successive")
PAD_MODES = ("constant", "edge", "reflect", "symmetric")


def images(folder: Path | None = None) -> dict[str, Image.Image]:
    """Images of many kinds and odd sizes, the same for everybody, and those of a folder."""
    rng = np.random.default_rng(2024)
    noise = rng.integers(0, 256, (33, 50, 3), np.uint8)
    arrays: dict[str, npt.NDArray[np.uint8]] = {
        "leaves": paint(3, 127, 95, rng),
        "larger leaves": paint(6, 231, 310, rng),
        "noise": noise,
        "pure colors": (rng.integers(0, 2, (47, 31, 3)) * 255).astype(np.uint8),
        "dark": rng.integers(0, 4, (19, 23, 3), np.uint8),
        "gradient": np.stack([np.tile(np.arange(256, dtype=np.uint8), (5, 1))] * 3, axis=2),
        "one color": np.full((17, 16, 3), (40, 130, 250), np.uint8),
        "one column": noise[:, :1],
        "one row": noise[:1],
        "one pixel": noise[:1, :1],
    }
    made = {name: Image.fromarray(np.ascontiguousarray(array)) for name, array in arrays.items()}
    for name in ("leaves", "noise", "one row"):
        made[f"grey {name}"] = made[name].convert("L")
    for path in sorted(folder.iterdir()) if folder else ():
        with Image.open(path) as image:
            made[path.name] = image.convert("RGB")
    return made


def rows() -> dict[str, Cases]:
    """The cases of every row; a row's name begins with that of its operation."""
    made: dict[str, Cases] = {"crop": _crops, "hflip": _plain("hflip"), "vflip": _plain("vflip")}
    for filter in FILTERS:
        made[f"resize, {filter}"] = _resizes(filter)
    made["resize, a part"] = _resized_parts
    made["reduce"] = _reductions
    factors = (0.0, 0.1, 0.6, 0.99, 1.0, 1.37, 1.9, 5.0)
    for name in ("brightness", "contrast", "saturation", "sharpness"):
        made[name] = _with_numbers(name, *factors)
    made["hue"] = _with_numbers("hue", -0.5, -0.27, -0.1, -0.001, 0.0, 0.004, 0.05, 0.2, 0.41, 0.5)
    made["posterize"] = _with_numbers("posterize", *range(1, 9))
    made["solarize"] = _with_numbers("solarize", 0, 1, 100.5, 128, 254.9, 255)
    made["solarize_add"] = _with_numbers("solarize_add", 0, 1, 64, 110, 255)
    for name in ("invert", "autocontrast", "equalize", "grayscale"):
        made[name] = _plain(name)
    made["lookup"] = lambda width, height: [("lookup", TABLES[:256]), ("lookup", TABLES)]
    made["channels"] = lambda width, height: [("channels", 2, 0, 1), ("channels", 1, 1, 1)]
    made["blur"] = _blurs
    made["box_blur"] = _with_numbers("box_blur", 0.1, 0.7, 1.5, 2.0)
    for interpolation in INTERPOLATIONS:
        made[f"affine, {interpolation}"] = _affines(interpolation)
        made[f"perspective, {interpolation}"] = _perspectives(interpolation)
        made[f"rotate, {interpolation}"] = _rotations(interpolation)
    for mode in PAD_MODES:
        made[f"pad, {mode}"] = _pads(mode)
    made["cutout"] = _cutouts
    for mixing in MIXINGS:
        made[f"mix, {mixing}"] = _mixes(mixing)
    return made


def operation_of(row: str) -> str:
    """The operation that a row is about."""
    return row.partition(",")[0]


def cases(row: str, chosen: dict[str, Image.Image]) -> Iterator[tuple[Image.Image, Operation]]:
    """Every image with every case of a row."""
    make = rows()[row]
    for image in chosen.values():
        for operation in make(*image.size):
            yield image, operation


def _plain(name: str) -> Cases:
    return lambda width, height: [(name,)]


def _with_numbers(name: str, *numbers: float) -> Cases:
    return lambda width, height: [(name, number) for number in numbers]


def _crops(width: int, height: int) -> list[Operation]:
    inside = ("crop", width // 3, height // 4, (width + 2) // 3, (height + 1) // 2, FILLS[0])
    around = ("crop", -3, -2, width + 7, height + 4, FILLS[1])
    return [inside, around, ("crop", width - 1, height - 1, 5, 4, FILLS[1])]


def _resizes(filter: str) -> Cases:
    def make(width: int, height: int) -> list[Operation]:
        sizes = {
            (width, height),
            (max(width // 2, 1), max(height // 2, 1)),
            (max(width // 5, 1), max(height // 7, 1)),
            (2 * width + 1, height + 3),
            (max(width // 3, 1), height * 2),
            (24, 24),
            (1, 1),
        }
        return [("resize", *size, filter) for size in sorted(sizes)]

    return make


def _resized_parts(width: int, height: int) -> list[Operation]:
    boxes: list[tuple[float, ...]] = [(0, 0, width, height)]
    boxes.append((0.3, height / 3, width - 0.4, height))
    boxes.append((width / 3, 0.25, width - 0.1, height / 2))
    return [
        ("resize", *size, filter, box)
        for box in boxes
        if box[2] - box[0] >= 1 and box[3] - box[1] >= 1
        for size in ((24, 17), (width, height), (max(width // 6, 1), 2 * height))
        for filter in FILTERS
    ]


def _reductions(width: int, height: int) -> list[Operation]:
    factors = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (1, 2), (3, 1), (7, 2)]
    factors += [(width, 3), (2, height)]
    return [("reduce", *each) for each in factors]


def _blurs(width: int, height: int) -> list[Operation]:
    kernels = [(1, 1), (3, 3), (5, 9), (23, 23), (23, 1)]
    return [
        ("blur", *kernel, across, down)
        for kernel in kernels
        if kernel[0] // 2 < width and kernel[1] // 2 < height
        for across, down in ((0.1, 0.1), (0.8, 1.7), (2.0, 2.0), (9.0, 0.4))
    ]


def _affines(interpolation: str) -> Cases:
    def make(width: int, height: int) -> list[Operation]:
        from torchvision.transforms.functional import _get_inverse_affine_matrix as inverse

        middle = [width * 0.5, height * 0.5]
        given: list[tuple[float, list[float], float, list[float]]] = [
            (0.0, [0, 0], 1.0, [0.0, 0.0]),
            (13.7, [0, 0], 1.0, [0.0, 0.0]),
            (0.0, [5, -3], 1.0, [0.0, 0.0]),
            (0.0, [0, 0], 0.61, [0.0, 0.0]),
            (0.0, [0, 0], 1.9, [0.0, 0.0]),
            (0.0, [-2, 1], 0.03, [0.0, 0.0]),
            (0.0, [0, 0], 1.0, [17.2, 0.0]),
            (0.0, [0, 0], 1.0, [0.0, -16.7]),
            (-120.0, [2, 9], 1.3, [8.0, -11.0]),
        ]
        matrices = [inverse(middle, *each) for each in given]
        return [
            ("affine", tuple(matrix), interpolation, FILLS[place % 2])
            for place, matrix in enumerate(matrices)
        ]

    return make


def _perspectives(interpolation: str) -> Cases:
    def make(width: int, height: int) -> list[Operation]:
        if min(width, height) < 4:
            return []
        from torchvision.transforms.functional import _get_perspective_coeffs as coefficients

        right, bottom = width - 1, height - 1
        start = [[0, 0], [right, 0], [right, bottom], [0, bottom]]
        part_x, part_y = width // 4, height // 4
        ends = [
            start,
            [[part_x, 0], [right - part_x, 0], [right, bottom], [0, bottom]],
            [[1, part_y], [right - part_x, 0], [right - 1, bottom - part_y], [part_x, bottom]],
            [[0, 0], [right, part_y], [right - part_x, bottom], [part_x, bottom - 1]],
        ]
        return [
            ("perspective", tuple(coefficients(start, end)), interpolation, FILLS[place % 2])
            for place, end in enumerate(ends)
        ]

    return make


def _rotations(interpolation: str) -> Cases:
    def make(width: int, height: int) -> list[Operation]:
        angles = (0.0, 0.3, 15.0, 45.0, 90.0, -71.3, 180.0, 270.0, 359.0)
        turns: list[Operation] = [
            ("rotate", angle, interpolation, expand, None, FILLS[expand])
            for angle in angles
            for expand in (False, True)
        ]
        return [*turns, ("rotate", 30.0, interpolation, False, [3.0, 5.0], FILLS[1])]

    return make


def _pads(mode: str) -> Cases:
    def make(width: int, height: int) -> list[Operation]:
        amounts = [(0, 0, 0, 0), (4, 1, 2, 3), (0, 5, 0, 0)]
        # torchvision's tensors can be mirrored only once.
        amounts.append((width - 1, 0, width // 2, height - 1))
        if min(width, height) > 4:
            amounts.append((-2, 3, 1, -1))
        return [("pad", *sides, mode, FILLS[1]) for sides in amounts]

    return make


def _cutouts(width: int, height: int) -> list[Operation]:
    half = ((width + 1) // 2, (height + 1) // 2)
    return [("cutout", 0, 0, *half, FILLS[1]), ("cutout", width // 2, height // 2, *half, FILLS[0])]


def _mixes(mixing: str) -> Cases:
    chains: list[list[Operation]] = [
        [("posterize", 4), ("rotate", 12.0, "bilinear", False, None, FILLS[0])],
        [("equalize",)],
        [("brightness", 1.4), ("autocontrast",)],
    ]

    def make(width: int, height: int) -> list[Operation]:
        weights = (0.3, 0.21, 0.19)
        return [("mix", part, weights, chains, mixing) for part in (0.3, 0.999)]

    return make
