"""Native code on random input: it works or raises ValueError, and touches no foreign memory.

FUSIONLOADER_FUZZ_SECONDS is how long all kinds together run, FUSIONLOADER_FUZZ_SEED where their
cases begin, FUSIONLOADER_FUZZ_LOG a file that names the case at work, for when there is nobody left
to say it. A case depends on its kind and number alone: ``attempt("files", 17)`` does it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from damaged_files import damaged
from random_plans import stage
from random_windows import compare_window
from support.random_operations import (
    INTERPOLATIONS,
    PAD_MODES,
    fill,
    matrix,
    operation,
    pixels,
    real,
    rotation,
    whole,
)

from fusionloader import _native
from fusionloader._native import testing
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import (
    Convert,
    Plan,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)

SECONDS = float(os.environ.get("FUSIONLOADER_FUZZ_SECONDS", "4"))
SEED = int(os.environ.get("FUSIONLOADER_FUZZ_SEED", "0"))
LOG = os.environ.get("FUSIONLOADER_FUZZ_LOG")
LEVELS = _native.simd_levels()
SIZES = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def run_file(random: Random) -> None:
    # An array of just that size: a byte read behind it is noticed.
    encoded = np.frombuffer(damaged(random), np.uint8).copy()
    stages = random.choice(
        (
            (),
            (RandomResizedCrop(16, 16, (0.05, 1), (0.5, 2), ("bilinear",)),),
            (RandomResizedCrop(9, 31, (0.5, 1), (0.5, 2), ("lanczos",)), RandomHorizontalFlip(0.5)),
            (Resize(5, 7, "bicubic"),),
        )
    )
    plan = Plan(stages, None, None, None, random.choice(("exact", "fast")))
    executor = make_executor(plan, simd=random.choice(LEVELS))
    for _ in range(2):  # a decoder has to work on after what it refused
        size = executor.image_size(encoded)
        result = executor.pixels(encoded, 1, 2, random.randrange(1000), 0)
        assert result is None or size is not None


def run_window(random: Random) -> None:
    compare_window(random, random.choice(LEVELS))


def run_operations(random: Random) -> None:
    channels = random.choice((1, 3))
    plan = Plan((), None, None, None, "exact", channels, channels)
    executor = make_executor(plan, simd=random.choice(LEVELS))
    operations = [operation(random) for _ in range(random.randint(1, 4))]
    made, (height, width) = executor.pixels_with(pixels(random, channels), operations)
    assert len(made) == height * width * channels


def run_plan(random: Random) -> None:
    channels = random.choice((1, 3))
    made = tuple(stage(random) for _ in range(random.randint(1, 4)))
    convert, height, width = None, None, None
    if random.random() < 0.5:
        element_type = random.choice(tuple(SIZES))
        table = random.randbytes(256 * channels * SIZES[element_type] + (random.random() < 0.02))
        convert = Convert(element_type, table)
        height, width = (min(whole(random, 1), 2**31 - 1) for _ in range(2))
        made = (*made, Resize(height, width, "bilinear"))
    result_channels = channels if random.random() < 0.8 else random.choice((1, 3))
    plan = Plan(made, convert, height, width, "exact", channels, result_channels)
    executor = make_executor(plan, simd=random.choice(LEVELS))
    image = pixels(random, channels)
    seeds = (random.getrandbits(64), 1, random.randrange(1000), random.randrange(3))
    executor.draw(*seeds, image.shape[1], image.shape[0])
    if convert is None:
        executor.pixels_of_pixels(image, *seeds)
    else:
        executor.run_pixels(image, *seeds, np.empty(executor.result_bytes, np.uint8))


def run_color(random: Random) -> None:
    name = random.choice(tuple(COLOR_OPS))
    arguments = [
        real(random, -1, 260) if random.random() < 0.3 else real(random, -1, 8)
        for _ in range(COLOR_OPS[name])
    ]
    if name == "gaussian_blur":
        arguments[:2] = [random.choice((1, 3, 5, 23)), random.choice((1, 3, 5, 511))]
    if name == "to_grayscale":
        arguments = [random.choice((1, 3))]
    testing.color_op(name, pixels(random), arguments, random.choice(LEVELS))


def run_geometry(random: Random) -> None:
    image = pixels(random)
    interpolation, color = random.choice(INTERPOLATIONS), fill(random)
    sides = [whole(random, -9, 40) for _ in range(4)]
    point = (real(random, -50, 50), real(random, -50, 50))
    angle, scale = real(random, -400, 400), real(random, 0.1, 3)
    calls = {
        "affine_transform": (
            random.randint(1, 99),
            random.randint(1, 99),
            matrix(random, 6),
            interpolation,
            color,
        ),
        "perspective_transform": (matrix(random, 8), interpolation, color),
        "rotate": rotation(random, interpolation),
        "pad": (*sides, random.choice(PAD_MODES), color),
        "affine": (angle, point, scale, point, interpolation, color, None),
        **{name: (real(random, -50, 50), interpolation, color) for name in ONE_NUMBER},
    }
    name = random.choice(tuple(calls))
    testing.geometry_op(name, image, calls[name], random.choice(LEVELS))


def run_corners(random: Random) -> None:
    corners = [[(real(random, -9, 99), real(random, -9, 99)) for _ in range(4)] for _ in range(2)]
    testing.perspective_coefficients(*corners)


COLOR_OPS = {"brightness": 1, "contrast": 1, "saturation": 1, "sharpness": 1, "hue": 1}
COLOR_OPS |= {"posterize": 1, "solarize": 1, "solarize_add": 2, "invert": 0, "autocontrast": 0}
COLOR_OPS |= {"equalize": 0, "to_grayscale": 1, "gaussian_blur": 4, "erase": 7}
ONE_NUMBER = ("shear_x", "shear_y", "translate_x", "translate_y", "plain_shear_x")
ONE_NUMBER += ("plain_shear_y", "plain_translate_x", "plain_translate_y")
KINDS: dict[str, tuple[Callable[[Random], None], float]] = {
    "windows": (run_window, 0.3),
    "files": (run_file, 0.2),
    "operations": (run_operations, 0.2),
    "plans": (run_plan, 0.15),
    "color": (run_color, 0.07),
    "geometry": (run_geometry, 0.07),
    "corners": (run_corners, 0.01),
}


def attempt(kind: str, number: int) -> bool:
    """Whether a case worked; ``False`` where it was refused."""
    try:
        KINDS[kind][0](Random(f"{kind} {number}"))
    except ValueError:
        return False
    return True


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("kind", KINDS)
def test_random_input_works_or_is_refused(kind):
    end = time.monotonic() + SECONDS * KINDS[kind][1]
    number, worked = SEED, 0
    while time.monotonic() < end or number < SEED + 30:
        if LOG:
            Path(LOG).write_text(f"{kind} {number}\n")
        try:
            worked += attempt(kind, number)
        except BaseException as error:
            raise AssertionError(f"case {number} of {kind}") from error
        number += 1
    print(f"{kind}: {number - SEED} cases, of which {worked} worked")
    assert worked > 0
