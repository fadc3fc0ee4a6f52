"""What DALI can do of a plan, and in which order runs go: without DALI."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import PATIENCE
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from fusionloader import compile_plan
from fusionloader.executors.dali.families.schedule import runs
from fusionloader.executors.dali.families.support import first_unsupported

FULL = [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.25,) * 3)]
CROP = transforms.RandomResizedCrop(32)


def plan_of(*steps):
    return compile_plan(transforms.Compose([*steps, *FULL])).plan


@pytest.mark.parametrize(
    "step",
    [
        transforms.RandomHorizontalFlip(),
        transforms.RandAugment(),
        transforms.AutoAugment(),
        transforms.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR),
        transforms.ColorJitter(0.4, 0.4, 0.4),
        transforms.RandomApply([transforms.GaussianBlur(5)]),
        transforms.RandomRotation(20),
        transforms.RandomGrayscale(),
    ],
    ids=lambda step: type(step).__name__,
)
def test_the_usual_transforms_are_done(step):
    assert first_unsupported(plan_of(CROP, step), on_gpu=True) is None


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (transforms.ColorJitter(hue=0.1), "hue"),
        (transforms.RandomPerspective(), "RandomPerspective"),
        (transforms.RandAugment(interpolation=InterpolationMode.BICUBIC), "bicubic"),
        (transforms.AugMix(), "AugMix"),
        (transforms.RandomCrop(24), "RandomCrop"),
        (transforms.RandomRotation(20, expand=True), "expand"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_the_first_operation_that_is_not_done_is_named(step, named):
    assert named in first_unsupported(plan_of(CROP, step), on_gpu=False)


def test_erasing_and_other_tables_stay_in_the_memory_of_the_cpu():
    erasing = compile_plan(transforms.Compose([CROP, *FULL, transforms.RandomErasing()])).plan
    levels = compile_plan(transforms.Compose([CROP, transforms.PILToTensor()])).plan
    for plan, named in ((erasing, "RandomErasing"), (levels, "conversion")):
        assert first_unsupported(plan, on_gpu=False) is None
        assert named in first_unsupported(plan, on_gpu=True)


lists = st.lists(st.lists(st.sampled_from("abcdef"), max_size=4), max_size=12)


@given(wanted=lists, most=st.integers(1, 5))
def test_runs_give_every_sample_its_tasks_in_order(wanted, most):
    given_to = [[] for _ in wanted]
    for task, samples in runs(wanted, most):
        assert 0 < len(samples) <= most
        for sample in samples:
            given_to[sample].append(task)
    assert given_to == wanted


@given(wanted=lists)
def test_there_are_no_more_runs_than_tasks_in_all(wanted):
    assert len(list(runs(wanted, 100))) <= sum(map(len, wanted))


def test_a_sample_waits_while_another_task_serves_more():
    order = [task for task, _ in runs([["a", "b"], ["b"], ["a", "b"]], 4)]
    assert order == ["a", "b"]


def test_support_is_known_without_importing_dali():
    module = "fusionloader.executors.dali.families.support"
    code = f"import sys, {module}; sys.exit('nvidia' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
