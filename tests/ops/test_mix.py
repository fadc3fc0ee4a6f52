"""Mixes of images at every SIMD level, bit for bit: float32 sums as numpy's, blends as Pillow's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from fusionloader import _native
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Plan

SIMD_LEVELS = _native.simd_levels()
EXECUTORS = {
    (channels, simd): make_executor(
        Plan((), None, None, None, "exact", channels, channels), simd=simd
    )
    for channels in (1, 3)
    for simd in SIMD_LEVELS
}
CHAINS = [[], [("invert",)], [("solarize", 99.0), ("posterize", 3)]]
WEIGHTS = st.floats(0, 1.5, width=32) | st.sampled_from([-0.5, float("inf"), float("nan")])


def mixed(pixels, weight, weights, mixing, simd):
    operation = ("mix", weight, weights, CHAINS[: len(weights)], mixing)
    made, size = EXECUTORS[pixels.shape[2], simd].pixels_with(pixels, [operation])
    return np.frombuffer(made, np.uint8).reshape(*size, -1)


def chains_of(pixels, count):
    """What the chains make of the image, by hand."""
    inverted = np.where(pixels >= 99, 255 - pixels, pixels) & np.uint8(0xE0)
    return [pixels, 255 - pixels, inverted][:count]


def truncated(sums):
    with np.errstate(invalid="ignore"):
        return np.where(sums > 0, np.minimum(sums, np.float32(255)), 0).astype(np.uint8)


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@given(
    pixels=arrays.arrays(
        np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 40), st.sampled_from([1, 3]))
    ),
    weight=WEIGHTS,
    weights=st.lists(WEIGHTS, max_size=3),
)
def test_sums_are_numpy_s_in_float32(simd, pixels, weight, weights):
    terms = [(weight, pixels), *zip(weights, chains_of(pixels, len(weights)), strict=True)]
    sums = np.zeros(pixels.shape, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for factor, levels in terms:
            sums += np.float32(factor) * levels.astype(np.float32)
    np.testing.assert_array_equal(mixed(pixels, weight, weights, "sum", simd), truncated(sums))


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@given(
    pixels=arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 40), st.just(3))),
    weight=st.floats(0, 1),
    weights=st.lists(st.floats(0, 1, width=32), max_size=3),
)
def test_blends_are_pillow_s(simd, pixels, weight, weights):
    chains = chains_of(pixels, len(weights))
    expected = Image.fromarray(pixels)
    for factor, levels in zip(weights, chains, strict=True):
        expected = Image.blend(expected, Image.fromarray(levels), factor)
    got = mixed(pixels, weight, weights, "successive", simd)
    np.testing.assert_array_equal(got, np.asarray(expected))

    sums = np.zeros(pixels.shape, np.float32)
    for factor, levels in zip(weights, chains, strict=True):
        sums += np.float32(factor) * levels.astype(np.float32)
    expected = Image.blend(Image.fromarray(pixels), Image.fromarray(truncated(sums)), weight)
    np.testing.assert_array_equal(mixed(pixels, weight, weights, "over", simd), expected)
