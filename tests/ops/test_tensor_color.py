"""Color operations with the levels that torchvision gives uint8 tensors, of its v1 and its v2."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from ops.test_color import FACTORS, PICTURES
from torchvision.transforms import _functional_tensor as v1
from torchvision.transforms.v2 import functional as v2

from fusionloader import _native
from fusionloader._native import testing

SIMD_LEVELS = _native.simd_levels()
MODULES = {"torch_v1": v1, "torch_v2": v2, "torch_v2_interleaved": v2}
BLENDS = ("contrast", "saturation", "sharpness")
HUES = [-0.5, -0.4, -0.123, -1e-9, 0, 0.003, 0.05, 0.1, 0.25, 1 / 3, 0.37, 0.5]


@pytest.fixture(autouse=True)
def single_thread():
    """With more of them torch adds up parts of a large image, and these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def on_tensors(name, rounding, pixels, *arguments):
    function = {
        **{each: f"adjust_{each}" for each in (*BLENDS, "hue")},
        "to_grayscale": "rgb_to_grayscale",
    }.get(name, name)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    if rounding == "torch_v2":
        image = image.contiguous()
    return getattr(MODULES[rounding], function)(image, *arguments).permute(1, 2, 0).numpy()


def assert_same(name, rounding, pixels, *arguments):
    expected = on_tensors(name, rounding, pixels, *arguments)
    for simd in SIMD_LEVELS:
        found = testing.color_op(name, pixels, arguments, simd, rounding)
        got = np.frombuffer(found, np.uint8).reshape(*pixels.shape[:2], -1)
        assert np.array_equal(got, expected), (name, rounding, pixels.shape, arguments, simd)


@pytest.mark.parametrize("rounding", MODULES)
@pytest.mark.parametrize("name", [*BLENDS, "hue", "autocontrast", "to_grayscale"])
def test_the_levels_are_torchvision_s_on_tensors(name, rounding):
    known = {**dict.fromkeys(BLENDS, FACTORS), "hue": HUES, "to_grayscale": [1, 3]}
    for pixels in PICTURES[::3] if name == "hue" else PICTURES[::2]:
        for argument in known.get(name, [None]):
            if name == "to_grayscale" and argument > pixels.shape[2]:
                continue
            assert_same(name, rounding, pixels, *(() if argument is None else (argument,)))


@pytest.mark.parametrize("rounding", MODULES)
@pytest.mark.parametrize("name", BLENDS)
@settings(max_examples=40, deadline=None)
@given(
    factor=st.one_of(st.floats(0, 20), st.integers(0, 40).map(lambda tenths: tenths / 10)),
    pixels=arrays.arrays(np.uint8, st.tuples(*[st.integers(1, 20)] * 2, st.sampled_from([1, 3]))),
)
def test_any_factor_blends_as_torchvision_does(name, rounding, factor, pixels):
    assert_same(name, rounding, pixels, factor)


@pytest.mark.parametrize("rounding", MODULES)
def test_grey_and_hue_of_colors_all_over_the_cube(rounding):
    levels = np.r_[0:256:5, 1, 2, 3, 127, 128, 253, 254].astype(np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(len(levels), -1, 3)
    cube = np.ascontiguousarray(cube)
    assert_same("to_grayscale", rounding, cube, 1)
    for hue in (-0.41, 0.0, 0.23):
        assert_same("hue", rounding, cube, hue)


@pytest.mark.parametrize("rounding", MODULES)
@pytest.mark.parametrize("shape", [(300, 301, 3), (521, 640, 1), (1031, 2049, 1), (1, 90007, 3)])
def test_the_mean_of_many_pixels_is_rounded_as_torch_rounds_it(rounding, shape):
    pixels = np.random.default_rng(shape[0]).integers(90, 256, shape, np.uint8)
    for factor in np.linspace(0.05, 1.95, 25):
        assert_same("contrast", rounding, pixels, float(factor))


def test_a_factor_that_is_no_number_is_refused():
    pixels = PICTURES[0]
    for rounding in MODULES:
        with pytest.raises(ValueError, match="a number"):
            testing.color_op("contrast", pixels, (float("nan"),), None, rounding)
        with pytest.raises(ValueError, match=r"-0\.5 to 0\.5"):
            testing.color_op("hue", pixels, (0.6,), None, rounding)
