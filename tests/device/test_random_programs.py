"""Random operations, extreme and impossible ones among them: the executor's pixels or a refusal."""

from __future__ import annotations

import os
from random import Random

import numpy as np
import pytest
from support.device_cases import by_device_body, native
from support.random_operations import operation, pixels

from fusionloader import _native

CASES = int(os.environ.get("FUSIONLOADER_FUZZ_CASES", "600"))
SEED = int(os.environ.get("FUSIONLOADER_FUZZ_SEED", "0"))


def compare(number: int) -> bool:
    """Whether the case could be compared."""
    random = Random(f"device {number}")
    image = pixels(random)
    operations = [operation(random) for _ in range(random.randint(1, 4))]
    try:
        impossible = _native.device_unsupported(operations)
        expected = native(image, operations)
    except ValueError:
        with pytest.raises(ValueError):
            by_device_body(image, operations, 1, 1)
        return False
    if impossible not in (None, "erase with noise") or expected.size == 0:
        return False  # a border that leaves nothing
    got = by_device_body(image, operations, random.choice((1, 1, 2, 3)), expected.size)
    assert np.array_equal(got, expected), (number, image.shape, operations)
    return True


@pytest.mark.timeout(CASES)
def test_random_operations_give_the_executor_s_pixels_or_are_refused():
    compared = sum(compare(number) for number in range(SEED, SEED + CASES))
    assert compared > CASES // 10
