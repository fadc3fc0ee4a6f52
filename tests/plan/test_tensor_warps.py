"""Warps of uint8 tensors have the levels of torchvision's functions for tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import transforms as v1
from torchvision.transforms import v2

from fusionloader import _native, compile_plan
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Plan
from fusionloader.transforms.plan.torchvision.on_tensors import run_on_tensor

SIMD_LEVELS = _native.simd_levels()
SIDES = st.integers(1, 90)
NUMBERS = st.floats(-1.5, 1.5, width=32)
ROUNDINGS = ("torch_v1", "torch_v2", "torch_unfilled")


def natively(levels, operation, simd=None):
    channels = levels.shape[2]
    plan = Plan((), None, None, None, "exact", channels, channels)
    pixels, shape = make_executor(plan, simd=simd).pixels_with(levels, [operation])
    return torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(*shape, -1).copy())


def noise(height, width, channels, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


@st.composite
def operations(draw, width, height):
    fill = draw(st.tuples(*[st.integers(0, 255)] * 3))
    mode = draw(st.sampled_from(("nearest", "bilinear")))
    rounding = draw(st.sampled_from(ROUNDINGS))
    a, b, c, d, e, f, g, h = (draw(NUMBERS) for _ in range(8))
    if draw(st.booleans()):
        size = [draw(st.tuples(SIDES, SIDES))] if draw(st.booleans()) else []
        matrix = (a, b, c * width, d, e, f * height)
        return ("affine", matrix, mode, fill, *size, rounding)
    coefficients = (a, b, c * width, d, e, f * height, g / 2 / width, h / 4 / height)
    return "perspective", coefficients, mode, fill, rounding


@given(SIDES, SIDES, st.sampled_from((1, 3)), st.integers(0, 99), st.data())
def test_a_warp_has_the_levels_of_torch(height, width, channels, seed, data):
    levels = noise(height, width, channels, seed)
    operation = data.draw(operations(width, height))
    expected = run_on_tensor(torch.from_numpy(levels).permute(2, 0, 1), operation)
    for simd in SIMD_LEVELS:
        assert torch.equal(natively(levels, operation, simd).permute(2, 0, 1), expected), simd


@pytest.mark.parametrize("size", [(1, 1), (3, 700), (530, 2), (300, 270)])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_warp_of_any_size_has_the_levels_of_torch(size, rounding):
    levels = noise(*size, 3)
    for operation in (
        ("affine", (0.9, -0.4, 1.25, 0.3, 1.2, -2.5), "bilinear", (255, 3, 90), rounding),
        ("perspective", (1.1, 0.2, 0, 0.1, 0.8, 3, 1e-3, 1e-4), "bilinear", (9, 9, 9), rounding),
    ):
        expected = run_on_tensor(torch.from_numpy(levels).permute(2, 0, 1), operation)
        for simd in SIMD_LEVELS:
            assert torch.equal(natively(levels, operation, simd).permute(2, 0, 1), expected)


@settings(max_examples=30)
@given(st.floats(-200, 200), SIDES, SIDES, st.sampled_from((None, (3.0, 8.5))), st.booleans())
def test_a_larger_rotation_is_that_of_torch(angle, height, width, centre, older):
    module = v1 if older else v2
    bilinear = v1.InterpolationMode.BILINEAR
    step = module.RandomRotation((angle, angle), bilinear, expand=True, center=centre, fill=7)
    plan = compile_plan(v2.Compose([v2.ToImage(), step]))
    assert plan.tail is None, plan.explain()
    levels = noise(height, width, 3)
    (operation,) = plan.draw(width, height, index=0)
    expected = step(torch.from_numpy(levels).permute(2, 0, 1))
    assert torch.equal(natively(levels, operation).permute(2, 0, 1), expected)
