"""Color operations with the levels that torchvision gives PIL images, and tensors by v1 and v2."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageFilter
from torchvision.transforms import _functional_tensor as v1
from torchvision.transforms.v2 import functional as v2

from fusionloader import _native
from fusionloader._native import testing

pytestmark = pytest.mark.usefixtures("one_thread")

SIMD_LEVELS = _native.simd_levels()
FACTORS = [0, 0.1, 0.3, 0.5, 0.9, 0.999, 1, 1.001, 1.1, 1.5, 1.9, 3.7, 10, 1e9]
HUES = [-0.5, -0.4, -0.123, -0.004, -0.003, -1e-9, 0, 0.003, 0.004]
HUES += [0.05, 0.1, 0.25, 1 / 3, 0.37, 0.5]
THRESHOLDS = [-1, 0, 0.5, 1, 26.6, 127.5, 128, 254.5, 255, 255.5, 256]
SHAPES = [(1, 1), (1, 40), (40, 1), (2, 2), (2, 9), (3, 3), (31, 17), (64, 64), (70, 131)]
REFERENCES = {
    "brightness": F.adjust_brightness,
    "contrast": F.adjust_contrast,
    "saturation": F.adjust_saturation,
    "sharpness": F.adjust_sharpness,
    "hue": F.adjust_hue,
    "posterize": F.posterize,
    "solarize": F.solarize,
    "invert": F.invert,
    "autocontrast": F.autocontrast,
    "equalize": F.equalize,
    "to_grayscale": F.to_grayscale,
}
BLENDS = ["contrast", "saturation", "sharpness"]
MODULES = {"torch_v1": v1, "torch_v2": v2, "torch_v2_interleaved": v2}
TENSORS = [*BLENDS, "hue", "autocontrast", "to_grayscale"]
PILLOW = "pillow"
CASES = [(name, PILLOW) for name in REFERENCES]
CASES += [(name, rounding) for name in TENSORS for rounding in MODULES]
ARGUMENTS = {
    **dict.fromkeys(["brightness", "contrast", "saturation", "sharpness"], FACTORS),
    "hue": HUES,
    "posterize": range(1, 9),
    "solarize": THRESHOLDS,
    "to_grayscale": [1, 3],
}


def picture(kind, height, width, channels):
    rng = np.random.default_rng(height * 1000 + width)
    noise = rng.integers(0, 256, (height, width, channels))
    y, x = np.mgrid[:height, :width]
    smooth = np.stack([40 + 3 * x, 200 - 2 * y, 90 + x + y][:channels], axis=2)
    pixels = {
        "noise": noise,
        "smooth": smooth + noise // 20,
        "faint": 100 + noise // 16,
        "two_levels": 60 + 100 * (noise > 200),
        "saturated": 255 * (noise > 128),
        "constant": np.broadcast_to(np.array([17, 250, 99])[:channels], noise.shape),
    }[kind]
    return np.ascontiguousarray(np.clip(pixels, 0, 255).astype(np.uint8))


KINDS = ["noise", "smooth", "faint", "two_levels", "saturated", "constant"]
PICTURES = [
    picture(kind, *shape, channels) for kind in KINDS for shape in SHAPES for channels in (3, 1)
]


def to_pillow(pixels):
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])


def pixels_of(image):
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def ours(name, pixels, arguments, simd=None, rounding=PILLOW):
    got = testing.color_op(name, pixels, tuple(arguments), simd, rounding)
    return np.frombuffer(got, np.uint8).reshape(*pixels.shape[:2], -1)


def theirs(name, pixels, arguments, rounding):
    if rounding == PILLOW:
        return pixels_of(REFERENCES[name](to_pillow(pixels), *arguments))
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    if rounding == "torch_v2":
        image = image.contiguous()
    named = {"autocontrast": "autocontrast", "to_grayscale": "rgb_to_grayscale"}
    function = getattr(MODULES[rounding], named.get(name, f"adjust_{name}"))
    return function(image, *arguments).permute(1, 2, 0).numpy()


def assert_levels_of_torchvision(name, rounding, pixels, *arguments):
    expected = theirs(name, pixels, arguments, rounding)
    for simd in SIMD_LEVELS:
        got = ours(name, pixels, arguments, simd, rounding)
        assert np.array_equal(got, expected), (name, rounding, pixels.shape, arguments, simd)


@pytest.mark.few(14)
@pytest.mark.parametrize(("name", "rounding"), CASES)
def test_the_levels_are_torchvision_s(name, rounding):
    every = 1 if rounding == PILLOW else 3 if name == "hue" else 2
    for pixels in PICTURES[::every]:
        for argument in ARGUMENTS.get(name, [None]):
            arguments = () if argument is None else (argument,)
            assert_levels_of_torchvision(name, rounding, pixels, *arguments)


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("name", "rounding"), [("brightness", PILLOW), *((n, r) for n, r in CASES if n in BLENDS)]
)
@settings(max_examples=50, deadline=None)
@given(
    factor=st.one_of(st.floats(0, 20), st.integers(0, 40).map(lambda tenths: tenths / 10)),
    pixels=arrays.arrays(np.uint8, st.tuples(*[st.integers(1, 20)] * 2, st.sampled_from([1, 3]))),
)
def test_any_factor_blends_as_torchvision_does(name, rounding, factor, pixels):
    assert_levels_of_torchvision(name, rounding, pixels, factor)


@pytest.mark.parametrize("rounding", [PILLOW, *MODULES])
def test_grey_and_hue_of_colors_all_over_the_cube(rounding):
    levels = np.r_[0:256:5, 1, 2, 3, 127, 128, 253, 254].astype(np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(len(levels), -1, 3)
    cube = np.ascontiguousarray(cube)
    assert_levels_of_torchvision("to_grayscale", rounding, cube, 1)
    for hue in (-0.41, 0.0, 0.23):
        assert_levels_of_torchvision("hue", rounding, cube, hue)


@pytest.mark.few(5)
@pytest.mark.parametrize("rounding", MODULES)
@pytest.mark.parametrize("shape", [(300, 301, 3), (521, 640, 1), (1031, 2049, 1), (1, 90007, 3)])
def test_the_mean_of_many_pixels_is_rounded_as_torch_rounds_it(rounding, shape):
    pixels = np.random.default_rng(shape[0]).integers(90, 256, shape, np.uint8)
    for factor in np.linspace(0.05, 1.95, 25):
        assert_levels_of_torchvision("contrast", rounding, pixels, float(factor))


@pytest.mark.parametrize("simd", SIMD_LEVELS)
def test_solarize_add(simd):
    for pixels in PICTURES:
        for add, threshold in [(0, 128), (10, 128), (110, 128), (255, 256), (50, 0), (-20, 99.5)]:
            added = np.clip(pixels.astype(int) + add, 0, 255).astype(np.uint8)
            expected = np.where(pixels < threshold, added, pixels)
            assert np.array_equal(ours("solarize_add", pixels, (add, threshold), simd), expected)


def test_erase():
    for x, y, width, height in [(0, 0, 1, 1), (3, 5, 9, 4), (60, 60, 99, 99), (-4, -4, 8, 8)]:
        for pixels in PICTURES:
            expected = pixels.copy()
            rows, columns = slice(max(y, 0), y + height), slice(max(x, 0), x + width)
            expected[rows, columns] = np.array([5, 250, 77])[: pixels.shape[2]]
            got = ours("erase", pixels, (x, y, width, height, 5, 250, 77))
            assert np.array_equal(got, expected)


KERNELS = [((1, 1), (1, 1)), ((3, 3), (0.1, 0.4)), ((5, 9), (0.8, 2)), ((23, 23), (2, 2))]
KERNELS += [((7, 3), (9, 0.7)), ((3, 13), (1, 0.5)), ((9, 9), (0.3, 30))]


def test_blur_is_within_one_level_of_torchvision_s():
    differing = compared = 0
    for number, pixels in enumerate(PICTURES):
        for kernel, sigma in KERNELS[number % 3 :: 3]:  # of each kernel all shapes
            if kernel[0] // 2 >= pixels.shape[1] or kernel[1] // 2 >= pixels.shape[0]:
                with pytest.raises(ValueError, match="kernel"):
                    ours("gaussian_blur", pixels, (*kernel, *sigma))
                continue
            blurred = F.gaussian_blur(to_pillow(pixels), list(kernel), list(sigma))
            expected = pixels_of(blurred).astype(int)
            results = [ours("gaussian_blur", pixels, (*kernel, *sigma), s) for s in SIMD_LEVELS]
            assert all(np.array_equal(results[0], result) for result in results)
            difference = np.abs(results[0] - expected)
            assert difference.max() <= 1
            differing, compared = differing + np.count_nonzero(difference), compared + expected.size
    assert differing / compared < 1e-3


@pytest.mark.parametrize("radius", [0, 0.01, 0.1, 0.5, 1, 1.37, 2, 5.5, 40, 500])
def test_box_blurs_are_those_of_pillow(radius):
    for pixels in PICTURES:
        expected = to_pillow(pixels).filter(ImageFilter.GaussianBlur(radius))
        ours = testing.color_op("box_blur", pixels, [radius])
        assert ours == pixels_of(expected).tobytes(), pixels.shape


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "arguments", "rounding", "why"),
    [
        ("sepia", (), PILLOW, "sepia"),
        ("hue", (), PILLOW, "hue"),
        ("gaussian_blur", (4, 3, 1, 1), PILLOW, "kernel"),
        *[("box_blur", (radius,), PILLOW, "radius") for radius in (-1.0, NAN, 1e5)],
        *[("contrast", (NAN,), rounding, "a number") for rounding in MODULES],
        *[("hue", (0.6,), rounding, r"-0\.5 to 0\.5") for rounding in MODULES],
    ],
)
def test_wrong_calls_are_refused(name, arguments, rounding, why):
    with pytest.raises(ValueError, match=why):
        ours(name, PICTURES[12], arguments, None, rounding)


def test_pixels_that_are_not_contiguous_are_refused():
    with pytest.raises(ValueError, match="contiguous"):
        testing.color_op("invert", picture("noise", 4, 4, 3)[:, ::2], ())
