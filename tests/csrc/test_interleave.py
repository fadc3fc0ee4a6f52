"""Pixels to planes and back, flips on the way: nothing may change at any width or SIMD level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from native_samples import SIMD_LEVELS

from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Plan

EXECUTORS = {
    (channels, simd): make_executor(
        Plan((), None, None, None, "exact", channels, channels), simd=simd
    )
    for channels in (1, 3)
    for simd in SIMD_LEVELS
}
IMAGES = arrays.arrays(
    np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 100), st.sampled_from([1, 3]))
)
FLIPS = {"hflip": np.s_[:, ::-1], "vflip": np.s_[::-1]}
BLACK = (0, 0, 0)


def result(pixels, operations, simd):
    executor = EXECUTORS[pixels.shape[2], simd]
    made, size = executor.pixels_with(pixels, operations)
    return np.frombuffer(made, np.uint8).reshape(*size, -1)


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@given(pixels=IMAGES, steps=st.lists(st.sampled_from([*FLIPS, "invert"]), max_size=5))
def test_flips_before_between_and_after_operations(simd, pixels, steps):
    expected = pixels
    for step in steps:
        expected = 255 - expected if step == "invert" else expected[FLIPS[step]]
    got = result(pixels, [(step,) for step in steps], simd)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@given(pixels=IMAGES, data=st.data())
@pytest.mark.few(2)
def test_windows_start_and_end_anywhere(simd, pixels, data):
    height, width, _ = pixels.shape
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    right = data.draw(st.integers(left + 1, width))
    window = ("crop", left, top, right - left, height - top, BLACK)
    # The second window makes the operation before it one that passes have to be split for.
    for operations in ([window], [("invert",), window, ("invert",)]):
        np.testing.assert_array_equal(result(pixels, operations, simd), pixels[top:, left:right])


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@given(pixels=IMAGES)
def test_an_image_stored_between_two_passes_is_whole(simd, pixels):
    height, width, _ = pixels.shape
    larger = ("crop", -1, -2, width + 3, height + 4, (9, 8, 7))
    passes = [("resize", 2 * width, 2 * height, "box"), larger, ("resize", width, 5, "box")]
    reference = result(pixels, passes[:1], "scalar")
    reference = result(reference, passes[1:2], "scalar")
    reference = result(reference, passes[2:], "scalar")
    np.testing.assert_array_equal(result(pixels, passes, simd), reference)
