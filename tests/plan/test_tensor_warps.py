"""Warps of uint8 and float32 tensors have the levels and bits of torchvision's functions."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.waiting import PATIENCE
from support.warps import rounding_here
from torchvision import transforms as v1
from torchvision.transforms import v2

from fusionloader import _native, compile_plan
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import TO_FLOATS, Convert, Plan
from fusionloader.transforms.plan.torchvision.on_tensors import run_on_tensor

TESTS = Path(__file__).parents[1]
SIMD_LEVELS = _native.simd_levels()
SIDES = st.integers(1, 90)
NUMBERS = st.floats(-1.5, 1.5, width=32)
ROUNDINGS = ("torch_v1", "torch_v2", "torch_unfilled")
SIZES = (1, 1), (3, 700), (530, 2), (300, 270)

TABLE = torch.linspace(-0.5, 2.0, 256)


def natively(levels, operation, simd=None):
    channels = levels.shape[2]
    plan = Plan((), None, None, None, "exact", channels, channels)
    pixels, shape = make_executor(plan, simd=simd).pixels_with(levels, [operation])
    made = torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(*shape, -1).copy())
    return made.permute(2, 0, 1)


def natively_on_floats(levels, operation, simd=None):
    channels = levels.shape[2]
    convert = Convert("float32", TABLE.repeat(channels).numpy().tobytes())
    plan = Plan((TO_FLOATS,), convert, None, None, "exact", channels, channels)
    operations = [("to_floats", "planar"), operation]
    pixels, shape = make_executor(plan, simd=simd).pixels_with(levels, operations)
    return torch.frombuffer(bytearray(pixels), dtype=torch.float32).reshape(channels, *shape)


def assert_is_that_of_torch(levels, operation):
    tensor = torch.from_numpy(levels).permute(2, 0, 1)
    expected = run_on_tensor(tensor, operation)
    floats = run_on_tensor(TABLE[tensor.long()], operation)
    for simd in SIMD_LEVELS:
        assert torch.equal(natively(levels, operation, simd), expected), simd
        made = natively_on_floats(levels, operation, simd)
        assert torch.equal(made.view(torch.int32), floats.view(torch.int32)), simd


def noise(height, width, channels, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


@st.composite
def operations(draw, width, height):
    fill = draw(st.tuples(*[st.integers(0, 255)] * 3))
    mode = draw(st.sampled_from(("nearest", "bilinear")))
    rounding = rounding_here(draw(st.sampled_from(ROUNDINGS)))
    a, b, c, d, e, f, g, h = (draw(NUMBERS) for _ in range(8))
    if draw(st.booleans()):
        size = [draw(st.tuples(SIDES, SIDES))] if draw(st.booleans()) else []
        matrix = (a, b, c * width, d, e, f * height)
        return ("affine", matrix, mode, fill, *size, rounding)
    coefficients = (a, b, c * width, d, e, f * height, g / 2 / width, h / 4 / height)
    return "perspective", coefficients, mode, fill, rounding


@given(SIDES, SIDES, st.sampled_from((1, 3)), st.integers(0, 99), st.data())
def test_a_warp_is_that_of_torch(height, width, channels, seed, data):
    levels = noise(height, width, channels, seed)
    assert_is_that_of_torch(levels, data.draw(operations(width, height)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_warp_of_any_size_is_that_of_torch(size, rounding):
    levels, rounding = noise(*size, 3), rounding_here(rounding)
    for operation in (
        ("affine", (0.9, -0.4, 1.25, 0.3, 1.2, -2.5), "bilinear", (255, 3, 90), rounding),
        ("perspective", (1.1, 0.2, 0, 0.1, 0.8, 3, 1e-3, 1e-4), "bilinear", (9, 9, 9), rounding),
    ):
        assert_is_that_of_torch(levels, operation)


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
    assert torch.equal(natively(levels, operation), expected)


@given(
    st.sampled_from((90.0, -90.0, 270.0, 450.0, 89.9999, 90.00001, 180.0, 360.0)),
    st.integers(1, 300),
    st.integers(1, 300),
    st.sampled_from((None, (3.0, 8.0), (7.25, -20.0))),
    st.sampled_from((v1, v2)),
    st.booleans(),
)
@example(90.00001, 17, 66, (3.0, 8.0), v1, True)
def test_a_quarter_of_a_turn_has_the_size_of_torchvision(
    angle, width, height, centre, module, is_tensor
):
    turn = module.RandomRotation((angle, angle), expand=True, center=centre)
    image = Image.new("RGB", (width, height))
    before = [v2.ToImage()] if is_tensor else []
    plan = compile_plan(v2.Compose([*before, turn]))
    assert plan.tail is None
    expected = turn(v2.functional.to_image(image)) if is_tensor else turn(image)
    width, height = plan.picture(image, plan.draw(width, height)).size
    assert [height, width] == v2.functional.get_size(expected)


def test_a_crop_after_a_quarter_of_a_turn_is_that_of_torchvision():
    image = Image.fromarray(noise(24, 9, 3))
    for angle in (90, 270, 450, -90):
        turn = v1.RandomRotation((angle, angle), expand=True)
        affine = v1.RandomAffine((30, 30), scale=(0.7, 0.7), fill=9)
        for steps in ([v1.RandomCrop((9, 24))], [affine]):
            transform = v1.Compose([turn, *steps, v1.PILToTensor()])
            plan = compile_plan(transform)
            assert torch.equal(plan.apply(image, plan.draw(*image.size)), transform(image))


UNFUSED = """
import itertools, sys, numpy as np, torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2
from fusionloader import compile_plan
image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (53, 71, 3), np.uint8))
for by, module in itertools.product(map(v1.InterpolationMode, sys.argv[1:]), (v1, v2)):
    for angle in (-31.0, 45.0, 13.7):
        for step in (module.RandomRotation((angle, angle), by, fill=(7, 8, 9)),
                     module.RandomRotation((angle, angle), by, expand=True, center=(3, 8)),
                     module.RandomRotation((angle, angle), by, expand=True),
                     module.RandomAffine((angle, angle), None, (0.9, 0.9), (9, 9), by)):
            for first in ([v2.PILToTensor()], [v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]):
                transform = v2.Compose([*first, step])
                plan = compile_plan(transform)
                assert plan.tail is None, plan.explain()
                assert torch.equal(plan.apply(image, plan.draw(71, 53)), transform(image)), step
if "bilinear" in sys.argv:
    from plan.test_tensor_warps import *
    for rounding in ROUNDINGS:
        assert rounding_here(rounding).endswith("_unfused")
        for size in SIZES:
            test_a_warp_of_any_size_is_that_of_torch(size, rounding)
"""
BILINEAR_TOO = ["MKL_ENABLE_INSTRUCTIONS=AVX2", "MKL_CBWR=COMPATIBLE"]


@pytest.mark.parametrize("setting", [*BILINEAR_TOO, "ATEN_CPU_CAPABILITY=default"])
@pytest.mark.few(1)
def test_warps_are_native_where_torch_multiplies_otherwise(setting):
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **dict([setting.split("=")])}
    filters = ["nearest", "bilinear"] if setting in BILINEAR_TOO else ["nearest"]
    command = sys.executable, "-c", UNFUSED, *filters
    subprocess.run(command, env=environment, check=True, timeout=PATIENCE)


def test_a_warp_that_torchvision_does_not_do_is_an_error():
    levels, matrix = noise(9, 9, 3), (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    for mode, *rest in (
        ("nearest", (5, 5), "pillow"),
        ("nearest", "torch_v2_interleaved"),
        ("bicubic", "torch_v1_unfused"),
    ):
        with pytest.raises(ValueError, match="size is of a warp|has no rounding"):
            natively(levels, ("affine", matrix, mode, (0, 0, 0), *rest))
    large = ("affine", matrix, "nearest", (0, 0, 0), (1 << 20, 1 << 20), "torch_v1")
    for attempt in (natively, natively_on_floats):
        with pytest.raises(ValueError, match="not possible"):
            attempt(levels, large)
