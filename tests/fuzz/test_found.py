"""What random input once broke, and what nothing must be allocated for: refused or done now."""

from __future__ import annotations

import numpy as np
import pytest

from fusionloader._native import testing
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan import stages
from fusionloader.transforms.plan.stages import Plan

NAN, INFINITY = float("nan"), float("inf")
BLACK = (0, 0, 0)
IMAGE = np.full((9, 7, 3), 100, np.uint8)


def done(*operations, image=IMAGE):
    made, (height, width) = make_executor(Plan((), None, None, None)).pixels_with(image, operations)
    return np.frombuffer(made, np.uint8).reshape(height, width, 3)


@pytest.mark.parametrize(
    "operation",
    [
        ("brightness", NAN),
        ("hue", INFINITY),
        ("hue", 1e300),
        ("posterize", 1e10),
        ("posterize", NAN),
        ("solarize_add", -INFINITY),
        ("blur", 3, 3, NAN, 1.0),
        ("blur", 3, 3, 1e-300, 1.0),
        ("crop", 0, 0, 2**31 - 1, 1, BLACK),
        ("crop", 0, 0, 2**31, 1, BLACK),
        ("crop", 0, 0, 1 << 20, 1 << 20, BLACK),
        ("resize", 1 << 20, 1 << 20, "box"),
        ("resize", 1 << 15, 1 << 15, "box"),
        ("pad", 2**31 - 1, 2**31 - 1, 1, 1, "edge", BLACK),
        ("pad", -(2**31), 0, 0, 0, "reflect", BLACK),
        ("pad", 1 << 19, 1 << 19, 1 << 19, 1 << 18, "constant", BLACK),
        ("cutout", 2**31 - 1, 0, 2**31 - 1, 1, BLACK),
        ("rotate", NAN, "nearest", True, None, BLACK),
        ("rotate", 30.0, "bilinear", True, (INFINITY, 0.0), BLACK),
        ("mix", 1.0, [0.5], [[("hflip",)]], "sum"),
        ("mix", 1.0, [0.5], [[("mix", 1.0, [], [], "sum")]], "sum"),
        ("mix", 1.0, [0.5], [[("rotate", 90.0, "nearest", True, None, BLACK)]], "sum"),
    ],
)
def test_impossible_operations_are_refused(operation):
    with pytest.raises(ValueError):
        done(operation)


def test_a_strip_turned_by_resizing_is_refused():
    strip = np.zeros((1 << 20, 1, 3), np.uint8)
    # Pillow 13 and its followers resize the columns first here.
    executor = make_executor(Plan((), None, None, None), pillow_version="12.0")
    with pytest.raises(ValueError, match="of that shape"):
        executor.pixels_with(strip, [("resize", 1 << 20, 1, "bilinear")])


def test_a_crop_within_an_image_may_be_as_large_as_the_image():
    image = np.zeros((11_600, 11_600), np.uint8)  # more pixels than are allocated for an operation
    executor = make_executor(Plan((), None, None, None, "exact", 1, 1))
    operations = [("crop", 0, 1, 11_590, 11_590, BLACK), ("resize", 2, 2, "box")]
    made, size = executor.pixels_with(image[..., None], operations)
    assert (made, size) == (bytes(4), (2, 2))
    with pytest.raises(ValueError, match="is not possible"):
        executor.pixels_with(image[..., None], [("crop", 0, 20, 11_590, 11_590, BLACK)])


def test_an_image_with_too_long_a_side_is_refused_with_its_size():
    with pytest.raises(ValueError, match="1048577 x 1 pixels is too large: a side"):
        done(("invert",), image=np.zeros((1, (1 << 20) + 1, 3), np.uint8))


def test_sums_that_are_no_numbers_become_black():
    operations = (
        ("mix", NAN, [0.5], [[("invert",)]], "sum"),
        ("mix", INFINITY, [-INFINITY], [[]], "sum"),
    )
    for operation in operations:
        assert not done(operation).any()


@pytest.mark.parametrize("factor", [INFINITY, 1e300])
def test_a_huge_factor_is_like_a_large_one(factor):
    assert np.array_equal(done(("contrast", factor)), done(("contrast", 1e6)))


@pytest.mark.parametrize("mixing", ["over", "successive"])
def test_a_huge_weight_is_like_a_large_one(mixing):
    def mixed(weight):
        weights = weight if mixing == "over" else 0.5, [weight]
        return done(("mix", *weights, [[("brightness", 0.5)]], mixing))

    assert np.array_equal(mixed(-1e308), mixed(-1e6))
    with pytest.raises(ValueError, match="a number"):
        mixed(NAN)


def test_warps_from_nowhere_show_the_fill_or_black():
    for matrix in ((NAN,) * 6, (INFINITY, 0, 0, 0, 1, 0), (1e300, 1e300, -1e308, 1, 1, 0)):
        for mode in ("nearest", "bilinear", "bicubic"):
            assert done(("affine", matrix, mode, BLACK)).shape == IMAGE.shape


ONE = stages.Magnitude((1.0,))
NO_LEVELS = stages.Magnitude((NAN,))
BACKWARDS = stages.Magnitude((1.0,), clip=(2.0, 1.0))
CUTOUT = stages.RandomPolicy(
    ((stages.PolicyStep("cutout", 1.0, stages.Magnitude((0.5,))),),), 1, ("nearest",), BLACK
)


def policy(magnitude=ONE, repeats=1):
    step = stages.PolicyStep("rotate", 1.0, magnitude)
    return stages.RandomPolicy(((step,),), repeats, ("nearest",), BLACK)


@pytest.mark.parametrize(
    "made",
    [
        (stages.RandomPerspective(NAN, "nearest", BLACK),),
        (stages.RandomPerspective(-7.0, "nearest", BLACK),),
        (stages.RandomRotation((NAN, NAN), "nearest", True, None, BLACK),),
        (stages.RandomCrop(3, 3, (2**31 - 1,) * 4, False, BLACK),),
        (stages.RandomCrop(0, 0, (0,) * 4, False, BLACK), CUTOUT),
        (stages.RandomResizedCrop(4, 4, (0.0, 0.0), (1e-300, 1e-300), ("box",)),),
        (stages.Fixed(("pad", -7, 0, 0, 0, "constant", BLACK)), CUTOUT),
        (stages.RandomErasing(1.0, (0.1, 0.2), (1.0, 1.0), b"", True, 2, 1),),
        (policy(NO_LEVELS),),
        (policy(BACKWARDS),),
        (policy(repeats=2**31 - 1),),
        (stages.AugMix(policy(), 2**31 - 1, 1, 1.0),),
        (stages.AugMix(policy(), 3, 1, NAN),),
        (stages.AugMix(policy(), 3, 1, -1e9),),
    ],
)
def test_impossible_plans_are_refused(made):
    with pytest.raises(ValueError):
        make_executor(Plan(made, None, None, None)).pixels_of_pixels(IMAGE, 0, 0, 0, 0)


def test_a_result_of_more_channels_than_the_images_is_refused():
    with pytest.raises(ValueError, match="no more channels"):
        make_executor(Plan((), None, None, None, "exact", 1, 3))


@pytest.mark.parametrize("side", [-1, 1 << 21, 2**31 - 1])
def test_a_result_of_an_impossible_size_is_refused(side):
    with pytest.raises(ValueError):
        make_executor(Plan((), None, side, side))


def test_erasing_far_outside_touches_nothing():
    arguments = [1e6, -1e6, 1e6, 1e6, 1, 2, 3]
    assert testing.color_op("erase", IMAGE, arguments) == IMAGE.tobytes()
