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
        kinds = ["crop", "outside", "resize", "box", "reduce", "hflip", "vflip"]
        kind = rng.choice(kinds)
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
        elif kind == "box":
            size = [int(value) for value in rng.integers(1, 90, 2)]
            name = str(rng.choice(list(RESAMPLING)))
            parameters.append(("resize", *size, name, random_box(rng, width, height)))
            width, height = size
        elif kind == "reduce":
            factors = [int(value) for value in rng.integers(1, 9, 2)]
            parameters.append(("reduce", *factors))
            width, height = -(-width // factors[0]), -(-height // factors[1])
        else:
            parameters.append((str(kind),))
    return parameters


def random_box(rng, width, height):
    """A part of an image, at least a pixel wide and high, sometimes of whole pixels."""
    left, upper = rng.uniform(0, width - 1), rng.uniform(0, height - 1)
    box = left, upper, rng.uniform(left + 1, width), rng.uniform(upper + 1, height)
    if rng.random() < 0.3:
        box = 0, 0, width, height
    elif rng.random() < 0.3:
        box = int(box[0]), int(box[1]), int(np.ceil(box[2])), int(np.ceil(box[3]))
    box = tuple(float(np.float32(place)) for place in box)
    return box if box[2] - box[0] >= 1 and box[3] - box[1] >= 1 else (0, 0, width, height)


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
@pytest.mark.parametrize("kind", RESAMPLING)
def test_pillow_12_3_resizes_tall_images_vertically_first(kind, simd):
    for (width, height), (new_width, new_height), is_tall in [
        ((3, 301), (224, 224), True),
        ((3, 300), (224, 224), False),
        ((3, 301), (224, 400), False),
        ((230, 600), (224, 224), False),
    ]:
        image = photo(width, height, 1)
        between = (width, new_height) if is_tall else (new_width, height)
        filter = RESAMPLING[kind]
        expected = image.resize(between, filter).resize((new_width, new_height), filter)
        found = resized(image, [("resize", new_width, new_height, kind)], simd, "12.3.0")
        np.testing.assert_array_equal(found, np.asarray(expected))


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


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (("resize", 9, 9, "box", (0, 0, 20.5, 9)), "that part of the image"),
        (("resize", 9, 9, "box", (-0.1, 0, 9, 9)), "that part of the image"),
        (("resize", 9, 9, "box", (3, 3, 3.5, 9)), "that part of the image"),
        (("resize", 9, 9, "box", (float("nan"), 3, 5, 9)), "that part of the image"),
        (("reduce", 0, 1), "cannot be reduced"),
        (("reduce", 1 << 20, 2), "cannot be reduced"),
        (("lookup", b"12"), "lookup needs a table"),
        (("channels", 0, 1, 3), "channels are 0, 1 and 2"),
    ],
)
def test_what_is_impossible_is_refused(operation, error):
    with pytest.raises(ValueError, match=error):
        resized_by(photo(20, 15, 1), [operation])


def resized_by(image, parameters):
    return make_executor(plan_for_size(None, None)).pixels_with(np.asarray(image), parameters)
