from __future__ import annotations

import numpy as np
import pytest
from native_samples import pixel_plan

from fusionloader._native import testing
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import (
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
)

ONES = 0xFFFFFFFF
# The known answers that accompany the Random123 library for philox4x32, ten rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ((ONES,) * 4, (ONES,) * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
FLIP = RandomHorizontalFlip(0.5)
CROP = RandomCrop(32, 32, (4, 4, 4, 4), False, (0, 0, 0))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_answers(counter, key, expected):
    assert testing.philox4x32(counter, key) == expected


def test_every_part_of_the_key_changes_the_draws():
    executor = make_executor(pixel_plan(RandomResizedCrop(8, 8, (0.1, 1), (0.5, 2), ("bilinear",))))
    keys = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    keys += [(2**32, 0, 0, 0), (0, 2**32, 0, 0), (0, 0, 2**32, 0)]
    draws = [str(executor.draw(*key, 5000, 3000)) for key in keys]
    assert len(set(draws)) == len(keys)
    assert draws == [str(executor.draw(*key, 5000, 3000)) for key in keys]


def test_a_stage_draws_the_same_whatever_the_stages_before_it_draw():
    alone = make_executor(pixel_plan(RandomVerticalFlip(0.0), CROP))
    after = make_executor(pixel_plan(RandomVerticalFlip(1.0), CROP))
    for index in range(50):
        first = alone.draw(7, 1, index, 0, 32, 32)
        assert after.draw(7, 1, index, 0, 32, 32) == [("vflip",), *first]


def test_two_flips_of_one_plan_are_independent():
    executor = make_executor(pixel_plan(FLIP, RandomVerticalFlip(0.5)))
    counts = np.zeros((2, 2))
    for index in range(8000):
        names = {operation[0] for operation in executor.draw(3, 0, index, 0, 8, 8)}
        counts["hflip" in names, "vflip" in names] += 1
    assert ((counts - 2000) ** 2 / 2000).sum() < 16.3  # chi-square, 3 degrees, p = 0.001
