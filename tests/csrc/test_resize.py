from __future__ import annotations

import numpy as np
import pytest
from native_samples import RESAMPLING, SIMD_LEVELS, apply, photo, plan_for_size
from PIL import Image

from fusionloader.transforms.executors.native import make_executor

SHAPES = [  # (width, height) before and after
    ((500, 375), (224, 224)),
    ((100, 90), (224, 224)),
    ((224, 300), (224, 224)),
    ((300, 224), (224, 224)),
    ((230, 600), (224, 224)),
    ((40, 700), (64, 32)),
    ((1, 1), (5, 7)),
    ((3, 2), (1, 1)),
    ((700, 3), (5, 9)),
    ((1500, 20), (3, 20)),
    ((20, 1500), (20, 2)),
    ((33, 65), (31, 66)),
    ((300, 1500), (2, 2)),
]


def resized(image, parameters, simd, pillow_version=None):
    width, height = apply(image, parameters).size
    executor = make_executor(plan_for_size(height, width), pillow_version, simd)
    out = np.zeros((height, width, 3), np.uint8)
    executor.run_pixels_with(np.asarray(image), parameters, out)
    return out


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@pytest.mark.parametrize("kind", RESAMPLING)
def test_a_resize_gives_pillow_s_pixels(kind, simd):
    for seed, (before, after) in enumerate(SHAPES):
        image = photo(*before, seed)
        parameters = [("resize", *after, kind)]
        expected = np.asarray(apply(image, parameters))
        np.testing.assert_array_equal(resized(image, parameters, simd), expected)


def random_parameters(rng, width, height):
    parameters = []
    for _ in range(rng.integers(1, 5)):
        kind = rng.choice(["crop", "outside", "resize", "hflip", "vflip"])
        if kind == "crop":
            w, h = rng.integers(1, width + 1), rng.integers(1, height + 1)
            x, y = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
            parameters.append(("crop", int(x), int(y), int(w), int(h), (9, 9, 9)))
            width, height = w, h
        elif kind == "outside":
            w, h = rng.integers(1, 90, 2)
            x, y = rng.integers(-20, width + 5), rng.integers(-20, height + 5)
            fill = tuple(int(value) for value in rng.integers(0, 256, 3))
            parameters.append(("crop", int(x), int(y), int(w), int(h), fill))
            width, height = w, h
        elif kind == "resize":
            width, height = rng.integers(1, 90, 2)
            name = str(rng.choice(list(RESAMPLING)))
            parameters.append(("resize", int(width), int(height), name))
        else:
            parameters.append((str(kind),))
    return parameters


@pytest.mark.parametrize("simd", SIMD_LEVELS)
def test_any_sequence_of_operations_gives_pillow_s_pixels(simd):
    rng = np.random.default_rng(4)
    for trial in range(250):
        size = [int(value) for value in rng.integers(1, 120, 2)]
        image = photo(*size, trial)
        parameters = random_parameters(rng, *size)
        expected = np.asarray(apply(image, parameters))
        np.testing.assert_array_equal(
            resized(image, parameters, simd), expected, err_msg=f"{size} {parameters}"
        )


@pytest.mark.parametrize("simd", SIMD_LEVELS)
def test_before_pillow_13_the_horizontal_pass_always_comes_first(simd):
    image = photo(230, 600, 1)
    parameters = [("resize", 224, 224, "bilinear")]
    rows = image.resize((224, 600), Image.Resampling.BILINEAR)
    expected = np.asarray(rows.resize((224, 224), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resized(image, parameters, simd, "12.1.0"), expected)
    assert not np.array_equal(resized(image, parameters, simd, "13.0.0"), expected)


@pytest.mark.parametrize("simd", SIMD_LEVELS)
def test_nothing_is_written_past_the_result(simd):
    image = np.asarray(photo(50, 40, 0))
    for width in range(1, 40):
        executor = make_executor(plan_for_size(3, width), simd=simd)
        out = np.full(3 * width * 3 + 64, 77, np.uint8)
        executor.run_pixels_with(image, [("resize", width, 3, "bicubic")], out)
        assert (out[3 * width * 3 :] == 77).all()


def test_an_impossible_size_or_buffer_raises():
    executor = make_executor(plan_for_size(8, 8))
    pixels = np.zeros((8, 8, 3), np.uint8)
    out = np.zeros(192, np.uint8)
    with pytest.raises(ValueError, match="not possible"):
        executor.run_pixels_with(pixels, [("resize", 0, 8, "box")], out)
    with pytest.raises(ValueError, match="the plan says 8 x 8"):
        executor.run_pixels_with(pixels, [("resize", 9, 8, "box")], out)
    with pytest.raises(ValueError, match="191 bytes, the result needs 192"):
        executor.run_pixels_with(pixels, [], out[:191])
    with pytest.raises(ValueError, match="height x width x 4, 3 or 1"):
        executor.run_pixels_with(pixels[..., :2].copy(), [], out)
