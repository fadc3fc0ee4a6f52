"""Windows, flips and resizes of floats have the bits that torch gives float32 tensors."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_samples import SIMD_LEVELS
from support.campaigns import examples
from support.float_operations import by_torch
from torchvision.transforms import InterpolationMode, functional

from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.results import result_array
from fusionloader.transforms.plan.stages import TO_FLOATS, Convert, Fixed, Plan

SIDES = st.integers(1, 70)
WIDTHS = st.integers(2, 70)  # torch makes all rows the first one where a result is one pixel wide
FILTERS = st.sampled_from(["bilinear", "bicubic"])
TABLE = (torch.arange(256).float().div(255).sub(0.31).div(0.23)).repeat(3)
FILL = (3, 0, 255)


def table(channels):
    return Convert("float32", TABLE[: 256 * channels].numpy().tobytes())


def floats_of(levels):
    channels = levels.shape[2]
    index = torch.from_numpy(levels).permute(2, 0, 1).long()
    return TABLE[:256][index].reshape(channels, *levels.shape[:2])


def natively(levels, operations, simd=None):
    """The result of drawn operations, whose first are on levels."""
    channels = levels.shape[2]
    plan = Plan((TO_FLOATS,), table(channels), None, None, "exact", channels, channels)
    made = make_executor(plan, simd=simd).pixels_with(levels, operations)
    return torch.from_numpy(result_array(*made, plan).copy())


def expected(levels, operations):
    image = floats_of(levels)
    for operation in operations:
        image = by_torch(image, *operation)
    return image


def noise(seed, height, width, channels=3):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def assert_same_bits(found, wanted):
    assert found.dtype is wanted.dtype and found.shape == wanted.shape
    assert torch.equal(found.view(torch.int32), wanted.contiguous().view(torch.int32))


@given(FILTERS, st.tuples(SIDES, SIDES), st.tuples(SIDES, WIDTHS), st.integers(0, 99))
@settings(max_examples=examples(60, 300), deadline=None)
@example("bilinear", (375, 500), (256, 341), 0)
@example("bicubic", (1, 900), (300, 2), 0)
@example("bicubic", (500, 3), (5, 11), 1)
@example("bilinear", (64, 64), (64, 32), 2)
@example("bilinear", (64, 64), (32, 64), 2)
@example("bicubic", (40, 40), (40, 40), 2)
def test_a_resize_has_the_bits_of_torch(name, before, after, seed):
    levels = noise(seed, *before, 1 if seed % 3 == 0 else 3)
    operations = [TO_FLOATS.operation, ("resize", after[1], after[0], f"float_{name}")]
    assert_same_bits(natively(levels, operations), expected(levels, operations[1:]))


@st.composite
def chains(draw):
    """Operations on floats; the first may be on levels, where they are the same."""
    operations, (width, height) = [], (draw(SIDES), draw(SIDES))
    size = width, height
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["resize", "crop", "pad", "hflip", "vflip", "normalize"]))
        if kind == "resize":
            width, height = draw(WIDTHS), draw(SIDES)
            operations.append((kind, width, height, f"float_{draw(FILTERS)}"))
        elif kind == "crop":
            x, y = draw(st.integers(-9, width + 3)), draw(st.integers(-9, height + 3))
            width, height = draw(SIDES), draw(SIDES)
            operations.append((kind, x, y, width, height, FILL))
        elif kind == "pad":
            left, top, right, bottom = draw(st.tuples(*[st.integers(0, 4)] * 4))
            width, height = width + left + right, height + top + bottom
            operations.append((kind, left, top, right, bottom, "constant", FILL))
        elif kind == "normalize":
            operations.append((kind, (0.25, 0.5, -1.5), (0.3, 1.0, 7.7)))
        else:
            operations.append((kind,))
    return size, operations


@given(chains(), st.integers(0, 99), st.sampled_from(SIMD_LEVELS))
@settings(max_examples=examples(150, 1000), deadline=None)
def test_a_chain_of_operations_has_the_bits_of_torch(chain, seed, simd):
    (width, height), operations = chain
    levels = noise(seed, height, width, 1 if seed % 5 == 0 else 3)
    found = natively(levels, [TO_FLOATS.operation, *operations], simd)
    assert_same_bits(found, expected(levels, operations))


@given(st.lists(st.sampled_from(["hflip", "vflip", "crop"]), max_size=4), st.integers(0, 99))
@settings(max_examples=examples(40, 200), deadline=None)
def test_windows_of_levels_come_before_those_of_floats(names, seed):
    levels = noise(seed, 40, 50)
    crop = ("crop", 3, 2, 30, 20, (0, 0, 0))
    before = [crop if name == "crop" else (name,) for name in names][:4]
    before = [each for i, each in enumerate(before) if each != crop or crop not in before[:i]]
    after = [("resize", 17, 23, "float_bilinear"), ("crop", 2, 5, 9, 12, FILL), ("hflip",)]
    found = natively(levels, [*before, TO_FLOATS.operation, *after])
    assert_same_bits(found, expected(levels, [*before, *after]))


@given(FILTERS, st.tuples(SIDES, SIDES), st.tuples(SIDES, WIDTHS), st.sampled_from(SIMD_LEVELS))
@settings(max_examples=examples(60, 300), deadline=None)
def test_levels_are_rounded_again_as_the_older_transforms_do(name, before, after, simd):
    levels = noise(before[0], *before)
    image = torch.from_numpy(levels).permute(2, 0, 1)
    wanted = functional.resize(image, list(after), InterpolationMode(name), antialias=True)
    operations = [("resize", after[1], after[0], f"float_{name}"), ("hflip",), ("invert",)]
    plan = Plan((), None, None, None)
    found = make_executor(plan, simd=simd).pixels_with(levels, operations)
    wanted = 255 - functional.hflip(wanted)
    assert np.array_equal(result_array(*found, plan), wanted.permute(1, 2, 0).numpy())


def test_what_works_on_levels_cannot_follow():
    levels = noise(0, 8, 8)
    for operation in [
        ("posterize", 3),
        ("resize", 4, 4, "bilinear"),
        ("pad", 1, 1, 1, 1, "edge", FILL),
        ("reduce", 2, 2),
        ("resize", 4, 4, "float_bilinear", (0.0, 0.0, 4.0, 4.0)),
    ]:
        with pytest.raises(ValueError, match="levels|constant"):
            natively(levels, [TO_FLOATS.operation, operation])


def test_a_plan_without_a_conversion_to_float32_is_refused():
    for convert in (None, Convert("uint8", bytes(768)), Convert("float32", bytes(4))):
        with pytest.raises(ValueError, match="conversion to float32"):
            make_executor(Plan((TO_FLOATS,), convert, 4, 4))
    executor = make_executor(Plan((), None, 4, 4))
    with pytest.raises(ValueError, match="how to make floats"):
        executor.pixels_with(noise(0, 4, 4), [TO_FLOATS.operation])


def test_a_resize_in_a_stage_of_a_plan_is_drawn_and_written():
    stages = (TO_FLOATS, Fixed(("normalize", (0.5, 0.5, 0.5), (2.0, 2.0, 2.0))))
    plan = Plan(stages, table(3), 6, 7)
    out = np.empty((3, 6, 7), np.float32)
    levels = noise(1, 6, 7)
    executor = make_executor(plan)
    assert executor.result_bytes == out.nbytes
    executor.run_pixels(levels, 0, 0, 0, 0, out)
    operations = executor.draw(0, 0, 0, 0, 7, 6)
    assert operations == [stage.operation for stage in stages]
    assert_same_bits(torch.from_numpy(out), expected(levels, operations[1:]))
