from __future__ import annotations

import numpy as np
import pytest
import torchvision.transforms as v1
from native_samples import photo, pixel_plan
from PIL import Image
from torchvision.transforms import v2

from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ResizeShorterSide,
)

DRAWS = 20_000


def our_windows(stage, width, height):
    executor = make_executor(pixel_plan(stage))
    draws = [executor.draw(11, 0, index, 0, width, height)[0] for index in range(DRAWS)]
    return np.array([draw[1:5] for draw in draws], dtype=float)  # x, y, width, height


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (3000, 2), (2, 3000), (40, 40)])
def test_the_fallback_window_is_torchvision_s(size):
    # A scale beyond the image makes every attempt fail.
    stage = RandomResizedCrop(8, 8, (9.0, 9.5), (3 / 4, 4 / 3), ("bilinear",))
    top, left, height, width = v1.RandomResizedCrop.get_params(
        Image.new("L", size), [9.0, 9.5], [3 / 4, 4 / 3]
    )
    drawn = make_executor(pixel_plan(stage)).draw(0, 0, 0, 0, *size)
    assert drawn[0] == ("crop", left, top, width, height, (0, 0, 0))


@pytest.mark.parametrize("size", [(32, 32), (40, 33), (20, 50)])
def test_random_crop_offsets_are_uniform_over_the_padded_image(size):
    stage = RandomCrop(32, 32, (1, 2, 3, 4), True, (0, 0, 0))
    ours = our_windows(stage, *size)
    width, height = size[0] + 4, size[1] + 6
    left, top = 1, 2
    if width < 32:
        left, width = left + 32 - width, width + 2 * (32 - width)
    for column, offset, choices in ((0, left, width - 31), (1, top, height - 31)):
        counts = np.bincount((ours[:, column] + offset).astype(int), minlength=choices)
        assert len(counts) == choices
        expected = DRAWS / choices
        # a chi-square variable this far above its mean: p < 0.0005
        limit = choices + 4.5 * np.sqrt(2 * choices) + 8
        assert ((counts - expected) ** 2 / expected).sum() < limit


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_flips_happen_with_their_probability(probability):
    executor = make_executor(pixel_plan(RandomHorizontalFlip(probability)))
    flipped = sum(bool(executor.draw(2, 0, index, 0, 8, 8)) for index in range(DRAWS))
    spread = np.sqrt(DRAWS * probability * (1 - probability))
    assert abs(flipped - DRAWS * probability) <= 4 * spread


SIZES = [(500, 375), (375, 500), (256, 256), (1, 1), (1, 99), (333, 17), (65, 64), (255, 1000)]


@pytest.mark.parametrize("max_size", [None, 300, 257])
@pytest.mark.parametrize("module", [v1, v2])
def test_the_resized_size_is_torchvision_s(module, max_size):
    executor = make_executor(pixel_plan(ResizeShorterSide(256, max_size, "bilinear")))
    transform = module.Resize(256, max_size=max_size)
    for size in SIZES:
        if max_size and 256 * min(size) // max(size) == 0:
            continue
        assert executor.draw(0, 0, 0, 0, *size)[0][1:3] == transform(Image.new("L", size)).size


def test_both_sides_given_are_taken_as_they_are():
    executor = make_executor(pixel_plan(Resize(30, 70, "box")))
    assert executor.draw(0, 0, 0, 0, 500, 375) == [("resize", 70, 30, "box")]


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("crop", [(224, 224), (10, 301), (5, 8), (31, 64)])
def test_centre_crops_are_torchvision_s(module, crop):
    transform = module.CenterCrop(crop)
    executor = make_executor(pixel_plan(CenterCrop(*crop)))
    for index, size in enumerate([(300, 240), (7, 9), (225, 301), (224, 224), (32, 30), (1, 1)]):
        image = photo(*size, index)
        pixels, shape = executor.pixels_of_pixels(np.asarray(image), 0, 0, 0, 0)
        ours = np.frombuffer(pixels, np.uint8).reshape(*shape, 3)
        np.testing.assert_array_equal(ours, np.asarray(transform(image)))


def test_a_crop_larger_than_the_image_raises_as_torchvision_does():
    executor = make_executor(pixel_plan(RandomCrop(32, 40, (0, 0, 0, 0), False, (0, 0, 0))))
    with pytest.raises(ValueError) as theirs:
        v1.RandomCrop((32, 40))(Image.new("RGB", (39, 50)))
    with pytest.raises(ValueError) as ours:
        executor.draw(0, 0, 0, 0, 39, 50)
    assert str(ours.value) == str(theirs.value)


def test_a_size_that_shrinks_to_nothing_raises_as_pillow_does():
    executor = make_executor(pixel_plan(ResizeShorterSide(10, 20, "bilinear")))
    with pytest.raises(ValueError, match="height and width must be > 0"):
        executor.draw(0, 0, 0, 0, 5000, 1)
