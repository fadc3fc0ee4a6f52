"""Transforms in transforms: compiled down to a limit, left to Python beyond it, never a crash."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms as v1

from fusionloader import compile_plan
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.arguments import MOST_NESTED
from fusionloader.transforms.plan.stages import (
    Fixed,
    Plan,
    RandomApply,
    RandomChoice,
    RandomOrder,
    Stage,
)

NATIVELY = MOST_NESTED + 1
IMAGE = Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
INVERTED = 255 - np.asarray(IMAGE)
CONTAINERS = {
    "RandomApply": lambda inner: v1.RandomApply([inner], 1.0),
    "RandomChoice": lambda inner: v1.RandomChoice([inner]),
    "RandomOrder": lambda inner: v1.RandomOrder([inner]),
    "Compose": lambda inner: v1.Compose([inner]),
}
STAGES = {
    "RandomApply": lambda inner: RandomApply(1.0, (inner,)),
    "RandomChoice": lambda inner: RandomChoice(((inner,),), (1.0,)),
    "RandomOrder": lambda inner: RandomOrder(((inner,),)),
}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("more", [0, 1, 60])
def test_a_deep_transform_gives_the_same_in_python(kind, more):
    transform = v1.RandomInvert(1.0)
    for _ in range(MOST_NESTED + more):
        transform = CONTAINERS[kind](transform)
    compiled = compile_plan(v1.Compose([v1.RandomVerticalFlip(0.0), transform]))
    assert (compiled.tail is None) == (more == 0)
    assert (f"more than {MOST_NESTED} deep" in compiled.explain()) == (more > 0)
    result = compiled.apply(IMAGE, compiled.draw(*IMAGE.size))
    np.testing.assert_array_equal(np.asarray(result), INVERTED)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_transform_that_contains_itself_is_left_to_python(kind):
    transform = CONTAINERS[kind](v1.RandomInvert(1.0))
    transform.transforms.extend([transform, transform])
    if kind == "RandomChoice":
        transform.p = None
    compiled = compile_plan(transform)
    assert compiled.tail is not None
    assert f"more than {MOST_NESTED} deep" in compiled.explain()


def nested(kind: str, depth: int) -> Stage:
    made: Stage = Fixed(("invert",))
    for _ in range(depth):
        made = STAGES[kind](made)
    return made


@pytest.mark.parametrize("kind", STAGES)
def test_the_native_side_has_a_limit_too(kind):
    executor = make_executor(Plan((nested(kind, NATIVELY),), None, None, None))
    assert executor.draw(0, 0, 0, 0, 5, 4) == [("invert",)]
    # The lists that were read before do not count.
    siblings = tuple(nested(kind, NATIVELY) for _ in range(3))
    assert len(make_executor(Plan(siblings, None, None, None)).draw(0, 0, 0, 0, 5, 4)) == 3
    for depth in (NATIVELY + 1, 400):
        with pytest.raises(ValueError, match=f"more than {NATIVELY} deep"):
            make_executor(Plan((nested(kind, depth),), None, None, None))


def test_operations_nested_without_end_are_refused():
    operation = ("invert",)
    for _ in range(20_000):
        operation = ("mix", 0.5, [0.5], [[operation]], "sum")
    executor = make_executor(Plan((), None, None, None))
    with pytest.raises(ValueError, match=f"more than {NATIVELY} deep"):
        executor.pixels_with(np.asarray(IMAGE), [operation])
    with pytest.raises(ValueError, match=f"more than {NATIVELY} deep"):
        make_executor(Plan((Fixed(operation),), None, None, None))
