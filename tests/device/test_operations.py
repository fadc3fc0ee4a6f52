"""The kernel's body gives the native executor's pixels, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.device_cases import (
    BORDERS,
    COLORS,
    FILL,
    MODES,
    PICTURES,
    WINDOWS,
    by_device_body,
    check,
    native,
    picture,
    pixel_plan,
    run_on_host,
    warps,
)
from support.random_operations import FILTERS

from fusionloader import _native

# What comes before a resize, and after it.
RESIZED = {
    "nothing": ([], []),
    "a window and flips": ([("crop", 11, 30, 40, 77, FILL)], [("hflip",), ("vflip",)]),
    "a part of the result": ([("vflip",)], [("crop", 2, 1, 4, 3, FILL), ("hflip",)]),
    "more than the result": ([], [("crop", -2, -3, 60, 70, FILL), ("hflip",)]),
    "nothing of the result": ([], [("crop", 91, 0, 5, 5, FILL)]),
    "colors and a second resize": ([("invert",)], [("resize", 20, 30, "bicubic"), ("equalize",)]),
}
# Teams of several lanes are threads: all pictures would take long.
FEW = [p for p in PICTURES if p.shape[:2] in ((1, 1), (2, 9), (31, 17))][:9]


def check_all(operations):
    for pixels in PICTURES:
        check(pixels, operations, lanes=(1,))
    for pixels in FEW:
        check(pixels, operations, lanes=(2, 5))


@pytest.mark.parametrize("name", COLORS)
def test_color_operations(name):
    for operation in COLORS[name]:
        check_all([operation])


def test_warps():
    for operation in warps():
        for pixels in PICTURES[:16]:
            check(pixels, [operation], lanes=(1,))
        check(FEW[2], [operation], lanes=(4,))


@pytest.mark.parametrize("operations", WINDOWS, ids=str)
def test_windows_and_flips(operations):
    check_all(operations)


def test_borders():
    for operation in BORDERS:
        for pixels in PICTURES[:16]:
            if is_refused_or_empty(pixels, operation):
                with pytest.raises(ValueError, match="leaves nothing|nothing is left"):
                    by_device_body(pixels, [operation], 1, 1)
            else:
                check(pixels, [operation], lanes=(1, 3) if pixels.size < 2000 else (1,))


def is_refused_or_empty(pixels, operation):
    try:
        return native(pixels, [operation]).size == 0
    except ValueError:
        return True


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 9), (23, 23), (7, 3), (3, 13)])
@pytest.mark.parametrize("sigma", [(0.1, 0.4), (0.8, 2.0), (9.0, 0.3)])
def test_gaussian_blurs(kernel, sigma):
    for pixels in PICTURES:
        operation = ("blur", *kernel, *sigma)
        if kernel[0] // 2 < pixels.shape[1] and kernel[1] // 2 < pixels.shape[0]:
            check(pixels, [operation], lanes=(1, 3) if pixels.size < 2000 else (1,))
        else:
            with pytest.raises(ValueError, match="kernel must be smaller"):
                by_device_body(pixels, [operation], 1, pixels.size)


def test_tables_in_a_row_are_one_step():
    chain = [("brightness", 1.7), ("invert",), ("posterize", 3), ("solarize", 77.0)]
    chain += [("solarize_add", 30), ("contrast", 0.4), ("invert",), ("brightness", 0.6)]
    check_all(chain)


reals = st.floats(-1.5, 1.5, allow_nan=False)
modes = st.sampled_from(MODES)
small = st.integers(-9, 40)
OPERATIONS = st.one_of(
    *(st.tuples(st.just(name), st.floats(0, 4)) for name in ("brightness", "contrast")),
    *(st.tuples(st.just(name), st.floats(0, 4)) for name in ("saturation", "sharpness")),
    st.tuples(st.just("hue"), st.floats(-0.5, 0.5)),
    st.tuples(st.just("posterize"), st.integers(0, 8)),
    st.tuples(st.just("solarize"), st.floats(0, 256)),
    st.sampled_from([("invert",), ("autocontrast",), ("equalize",), ("grayscale",)]),
    st.sampled_from([("hflip",), ("vflip",)]),
    st.tuples(st.just("box_blur"), st.floats(0, 9)),
    st.tuples(st.just("blur"), st.just(1), st.just(1), st.just(1.0), st.just(1.0)),
    st.tuples(st.just("cutout"), small, small, small, small, st.just(FILL)),
    st.tuples(st.just("crop"), small, small, *[st.integers(1, 40)] * 2, st.just(FILL)),
    st.tuples(st.just("pad"), *[st.integers(0, 6)] * 4, st.just("symmetric"), st.just(FILL)),
    st.tuples(st.just("affine"), st.tuples(*[reals] * 6), modes, st.just(FILL)),
    st.tuples(st.just("rotate"), reals.map(lambda r: 200 * r), modes, st.booleans(), st.none()).map(
        lambda fields: (*fields, FILL)
    ),
    st.tuples(st.just("resize"), st.integers(1, 40), st.integers(1, 40), st.sampled_from(FILTERS)),
    st.tuples(
        st.just("perspective"),
        st.tuples(*[reals] * 6, *[st.floats(-0.05, 0.05)] * 2),
        modes,
        st.just(FILL),
    ),
)


@settings(max_examples=300, deadline=None)
@given(
    pixels=arrays.arrays(np.uint8, st.tuples(*[st.integers(1, 30)] * 2, st.sampled_from([1, 3]))),
    operations=st.lists(OPERATIONS, max_size=5),
)
def test_any_chain_of_operations(pixels, operations):
    check(pixels, operations)


@pytest.mark.parametrize(
    ("operations", "name"),
    [
        ([("mix", 0.5, [0.5], [[("invert",)]], "sum")], "mix"),
        ([("erase", 0, 0, 1, 1, b"", True, 5)], "erase with noise"),
        ([("reduce", 2, 2)], "reduce"),
        ([("resize", 3, 3, "box", (0, 0, 1, 1))], "resize of a box"),
        ([("lookup", bytes(256))], "lookup"),
        ([("channels", 2, 1, 0)], "channels"),
    ],
)
def test_what_no_program_can_do_has_a_name(operations, name):
    assert _native.device_unsupported(operations) == name
    if name != "erase with noise":  # pixels of any size have no conversion to erase after
        with pytest.raises(ValueError, match=name):
            run_on_host(pixel_plan(3), PICTURES[0], operations, np.zeros(999, np.uint8))


def test_all_else_has_none():
    everything = [operation for kind in COLORS.values() for operation in kind]
    everything += [*warps(), *BORDERS, *(op for window in WINDOWS for op in window)]
    assert _native.device_unsupported(everything) is None
    assert _native.device_unsupported([("erase", 0, 0, 1, 1, b"\0" * 12, False, 0)]) is None


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("around", RESIZED)
def test_resizes(filter, around):
    before, after = RESIZED[around]
    for width, height in ((7, 9), (1, 1), (90, 200), (70, 5), (12, 131)):
        resize = ("resize", width, height, filter)
        for channels in (1, 3):
            check(picture("noise", 131, 70, channels), [*before, resize, *after], lanes=(1, 3))


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([("blur", 4, 3, 1.0, 1.0)], "odd"),
        ([("box_blur", -1.0)], "radius"),
        ([("contrast", float("nan"))], "a number"),
        ([("sharpness", float("nan"))], "a number"),
        ([("brightness", float("nan"))], "a number"),
        ([("posterize", 1e9)], "out of range"),
        ([("crop", 0, 0, 0, 5, FILL)], "not possible"),
        ([("pad", -9, 0, 0, 0, "edge", FILL)], "leaves nothing"),
        ([("erase", 0, 0, 1, 1, b"abc", False, 0), ("invert",)], "nothing but erasing"),
    ],
)
def test_what_makes_no_sense_is_refused_as_the_executor_does(operations, message):
    pixels = picture("noise", 5, 6, 3)
    with pytest.raises(ValueError, match=message):
        native(pixels, operations)
    with pytest.raises(ValueError, match=message):
        by_device_body(pixels, operations, 1, 999)


def test_wrong_calls_are_refused():
    plan = pixel_plan(3)
    pixels, out = picture("noise", 5, 6, 3), np.zeros(5 * 6 * 3, np.uint8)
    for lanes in (0, 65):
        with pytest.raises(ValueError, match="1 to 64 lanes"):
            run_on_host(plan, pixels, [], out, lanes)
    with pytest.raises(ValueError, match="89 bytes, the result needs 90"):
        run_on_host(plan, pixels, [], out[:-1])
    with pytest.raises(ValueError, match="plan's channels"):
        run_on_host(plan, pixels[:, :, :1].copy(), [], out)
