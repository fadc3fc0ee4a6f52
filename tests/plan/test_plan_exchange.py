"""Plans as data: they come back the same, and what was changed on the way is refused."""

import copy
import importlib.util
import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_augmentations import COLOR, GREY_TOO
from test_compile import DETERMINISTIC
from torchvision import transforms as v1
from torchvision.transforms import v2

from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan import exchange, stages
from fusionloader.transforms.plan.arguments import MOST_NESTED
from fusionloader.transforms.plan.exchange import plan_from_data, plan_to_data
from fusionloader.transforms.plan.stages import (
    Convert,
    Fixed,
    Magnitude,
    Plan,
    PolicyStep,
    RandomApply,
    RandomErasing,
    RandomPolicy,
    Resize,
    get_branches,
)
from fusionloader.transforms.plan.transforms import compile_transform

TIMM = {
    "randaugment": {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.4, "re_mode": "rand"},
    "levels": {"auto_augment": "rand-m9-n3-mstdinf", "re_prob": 0.4, "re_count": 3},
    "augmix": {"auto_augment": "augmix-m5-w4-d2", "re_prob": 0.4, "re_mode": "pixel"},
    "longest": {"auto_augment": "v0r-mstd0.5"},
    "simclr": {"color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5},
    "keep ratio": {"train_crop_mode": "rkrr", "interpolation": "random"},
}
TIMM_EVALUATION = {"border": {"crop_mode": "border"}, "trimmed": {"crop_border_pixels": 2}}


def _transforms():
    yield from {**GREY_TOO, **COLOR}.items()
    for name, steps in DETERMINISTIC.items():
        yield name, (v2.Compose if name.startswith("v2") else v1.Compose)(steps)
    yield "blur", v1.GaussianBlur(9, (0.1, 2.0))
    yield "crop", v1.RandomCrop(40, (4, 5), pad_if_needed=True, fill=3)
    if importlib.util.find_spec("timm") is None:
        return
    from timm.data import create_transform

    for names, training in ((TIMM, True), (TIMM_EVALUATION, False)):
        for name, arguments in names.items():
            yield f"timm {name}", create_transform(32, is_training=training, **arguments)


TRANSFORMS = dict(_transforms())


def sent(plan):
    return plan_from_data(json.loads(json.dumps(plan_to_data(plan), allow_nan=False)))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_compiled_plans_come_back_the_same(name):
    plan = compile_transform(TRANSFORMS[name]).plan
    assert plan.stages and sent(plan) == plan
    for strict, decode in ((False, "fast"), (True, "exact")):
        changed = replace(plan, strict=strict, decode=decode)
        assert sent(changed) == changed
    make_executor(sent(plan))


def test_every_stage_is_among_them():
    pytest.importorskip("timm")

    def kinds(found):
        for stage in found:
            yield type(stage)
            for branch in get_branches(stage):
                yield from kinds(branch)

    plans = [compile_transform(transform).plan for transform in TRANSFORMS.values()]
    seen = {kind for plan in plans for kind in kinds(plan.stages)}
    assert seen == set(stages.Stage.__args__)


def test_numbers_that_are_not_finite_are_no_json():
    magnitude = Magnitude((1.0, 2.0))
    text = json.dumps(plan_to_data(_plan(_policy(magnitude))), allow_nan=False)
    assert '"clip": ["-inf", "inf"]' in text
    with pytest.raises(ValueError, match=r"stages\[0\]\.\S*\.scale should be a finite number"):
        plan_to_data(_plan(_policy(replace(magnitude, scale=float("nan")))))


def _plan(*made, **fields):
    return Plan(made, None, 8, 9, **fields)


def _policy(magnitude):
    return RandomPolicy(((PolicyStep("rotate", 0.5, magnitude),),), 1, ("nearest",), (0, 0, 0))


# ---- what is refused ---------------------------------------------------------------------------

PLAN = Plan(
    (
        RandomApply(0.5, (Fixed(("pad", 1, 2, 3, 4, "edge", (1, 2, 3))), Fixed(("invert",)))),
        _policy(Magnitude()),
        Resize(8, 9, "box"),
        RandomErasing(0.5, (0.1, 0.2), (0.5, 2.0), b"abc"),
    ),
    Convert("uint8", bytes(range(256)) * 3),
    8,
    9,
)


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        ((), [], "plan should be a Plan, not list"),
        (("type",), "Resize", "plan should be a Plan, not 'Resize'"),
        (("stages", 2, "type"), "Shrink", r"plan.stages\[2\] should be one of .*, not 'Shrink'"),
        (("stages", 2, "type"), "Plan", r"plan.stages\[2\] should be one of .*, not 'Plan'"),
        (("stages", 2, "type"), ["Resize"], r"plan.stages\[2\] should be one of .*, not list"),
        (("stages", 2, "angle"), 3, r"plan.stages\[2\]: a Resize lacks the field 'angle', or sho"),
        (("stages", 2, "height"), True, r"plan.stages\[2\].height should be an integer, not True"),
        (("stages", 2, "height"), 8.0, r"plan.stages\[2\].height should be an integer, not 8.0"),
        (("stages", 2, "height"), 0, r"plan.stages\[2\].height should be 1 to 16384, not 0"),
        (("stages", 2, "height"), -7, r"plan.stages\[2\].height should be 1 to 16384, not -7"),
        (("stages", 2, "width"), 16385, r"plan.stages\[2\].width should be 1 to 16384, not 16385"),
        (("stages", 2, "filter"), "cubic", r"plan.stages\[2\].filter should be one of 'box', "),
        (("width",), 1 << 40, "plan.width should be -16777216 to 16777216"),
        (("width",), 16385, "plan.width should be 1 to 16384"),
        (("channels",), True, "plan.channels should be one of 1, 3, not True"),
        (("channels",), 3.0, "plan.channels should be one of 1, 3, not 3.0"),
        (("strict",), 1, "plan.strict should be true or false, not 1"),
        (("stages",), {}, "plan.stages should be a list, not dict"),
        (("stages", 0, "probability"), "0.5", r"probability should be a number, not '0.5'"),
        (("stages", 0, "probability"), None, r"probability should be a number, not None"),
        (("stages", 0, "probability"), 10**400, r"probability should be a finite number"),
        (("stages", 0, "stages", 0, "operation"), [], "should be one of the operations grayscale"),
        (("stages", 0, "stages", 0, "operation", 0), "crop", "one of the operations .*not 'crop'"),
        (("stages", 0, "stages", 0, "operation", 1), 1.5, r"operation\[1\] should be an integer"),
        (("stages", 0, "stages", 0, "operation", 6), [1, 2], r"should have 3 values, not 2"),
        (("stages", 0, "stages", 1, "operation"), ["invert", 1], r"should have 0 values, not 1"),
        (("stages", 1, "repeats"), 257, r"plan.stages\[1\].repeats should be -256 to 256"),
        (("convert", "table"), "b'abc'", "plan.convert.table is not base64"),
        (("convert", "table"), 5, "plan.convert.table should be bytes in base64, not 5"),
        (("convert", "table"), "A" * 8196, "plan.convert.table has 8196 characters, and may have"),
        (("convert", "element_type"), "int8", "plan.convert.element_type should be one of"),
        (("stages",), [None] * 20_000, r"plan.stages\[0\] should be one of"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(place, value, why):
    data = copy.deepcopy(plan_to_data(PLAN))
    if place:
        found = data
        for step in place[:-1]:
            found = found[step]
        found[place[-1]] = value
    else:
        data = value
    with pytest.raises(ValueError, match=why):
        plan_from_data(data)


def test_a_field_that_is_not_there_is_no_default():
    data = plan_to_data(PLAN)
    del data["strict"]
    with pytest.raises(ValueError, match="plan: a Plan lacks the field 'strict'"):
        plan_from_data(data)


def test_plans_have_bounds():
    flips = [stages.RandomHorizontalFlip(0.5)] * exchange.MOST_VALUES
    with pytest.raises(ValueError, match="a plan has 16384 values at most"):
        plan_to_data(_plan(*flips))
    nested = Fixed(("invert",))
    for _ in range(MOST_NESTED):
        nested = RandomApply(0.5, (nested,))
    assert sent(_plan(nested)) == _plan(nested)
    make_executor(_plan(nested))
    with pytest.raises(ValueError, match="nested 32 deep at most"):
        for _ in range(4):
            nested = RandomApply(0.5, (nested,))
            plan_to_data(_plan(nested))


def _places(data, place=()):
    yield place
    if isinstance(data, dict | list):
        for step, each in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _places(each, (*place, step))


SOUND = [plan_to_data(PLAN)] + [
    plan_to_data(compile_transform(TRANSFORMS[name]).plan)
    for name in ("simclr", "augmix", "order", "randaugment v2", "crop")
]
PLACES = [list(_places(data))[1:] for data in SOUND]
NAMES = [*exchange._KINDS, *exchange._OPERATIONS, "inf", "nearest", ""]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


@given(st.randoms(use_true_random=False), JSON, st.integers(1, 3))
def test_mutated_data_is_a_plan_or_a_value_error(random, junk, count):
    number = random.randrange(len(SOUND))
    data = copy.deepcopy(SOUND[number])
    for _ in range(count):
        _mutate(data, random.choice(PLACES[number]), random, junk)
    try:
        plan = plan_from_data(data)
        assert plan_to_data(plan) is not None and sent(plan) == plan
        make_executor(plan)
    except ValueError:
        pass


def _mutate(data, place, random: Random, junk):
    found = data
    try:
        for step in place[:-1]:
            found = found[step]
        value = found[place[-1]]
        others = (junk, [value], -1, 0, 1 << 31, 1e308, random.choice(NAMES))
        if random.random() < 0.2:
            found.pop(place[-1])
        else:
            found[place[-1]] = random.choice(others)
    except (LookupError, TypeError, AttributeError):
        pass  # a change before this one has taken the place away


@given(JSON)
def test_any_data_is_refused(data):
    with pytest.raises(ValueError):
        plan_from_data(data)
