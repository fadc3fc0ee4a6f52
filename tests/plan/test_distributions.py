"""What is drawn is distributed as what torchvision draws, or as the policy says.

torchvision runs with its functions on PIL images replaced by recorders, so that what it draws is
seen where it is used. Frequencies of operations and every argument are compared.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.campaigns import DRAWS
from support.distributions import assert_same_distribution, flat
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, functional, v2
from torchvision.transforms import _functional_pil as functional_pil
from torchvision.transforms.v2._auto_augment import _AutoAugmentBase

from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.transforms import compile_transform
from fusionloader.transforms.policies import DeepAutoAugment, ExtendedRandAugment

OURS, THEIRS = 3 * DRAWS, DRAWS
MANY, FEWER = 75_000, 25_000  # as `make draws` has them
SIZE = (331, 200)
TRANSFORMS = {
    "randaugment": v1.RandAugment(),
    "randaugment of three": v1.RandAugment(3, 14, 17),
    "trivial": v1.TrivialAugmentWide(),
    "imagenet": v1.AutoAugment(),
    "cifar10": v1.AutoAugment(v1.AutoAugmentPolicy.CIFAR10),
    "svhn": v1.AutoAugment(v1.AutoAugmentPolicy.SVHN),
    "randaugment v2": v2.RandAugment(),
    "trivial v2": v2.TrivialAugmentWide(),
    "imagenet v2": v2.AutoAugment(),
    "svhn v2": v2.AutoAugment(v1.AutoAugmentPolicy.SVHN),
    "crop": v1.RandomResizedCrop(8),
    "crop of a wide image": v1.RandomResizedCrop(8, (0.9, 1.0), (0.75, 1.0)),  # mostly the fallback
    "jitter": v1.ColorJitter(0.4, 0.3, (0.5, 2.0), 0.1),
    "rotation": v1.RandomRotation((-10, 35)),
    "affine": v1.RandomAffine(20, (0.2, 0.1), (0.7, 1.4), (-5, 5, 3, 8)),
    "perspective": v1.RandomPerspective(0.4, 0.3),
    "blur": v1.GaussianBlur(3, (0.3, 1.7)),
    "grayscale": v1.RandomGrayscale(0.2),
    "invert": v1.RandomInvert(0.7),
    "posterize": v1.RandomPosterize(3, 0.1),
    "apply": v1.RandomApply([v1.RandomInvert(0.5), v1.RandomRotation(5)], 0.4),
    "choice": v1.RandomChoice([v1.RandomInvert(1.0), v1.RandomEqualize(1.0)], [1, 3]),
    "choice with a zero": v1.RandomChoice(
        [v1.RandomInvert(1.0), v1.RandomEqualize(1.0), v1.RandomAutocontrast(1.0)], [0.2, 0.7, 0]
    ),
    "order": v1.RandomOrder(
        [v1.RandomInvert(1.0), v1.RandomEqualize(1.0), v1.RandomAutocontrast(1.0)]
    ),
}


# What torchvision's functions on PIL images are given, as the operations that are drawn.
RECORDED = {
    **dict.fromkeys(["invert", "autocontrast", "equalize", "to_grayscale"], lambda *_: ()),
    **dict.fromkeys(["posterize", "solarize"], lambda value: (value,)),
    **{
        f"adjust_{kind}": lambda factor: (factor,)
        for kind in ("brightness", "contrast", "saturation", "hue", "sharpness")
    },
    "rotate": lambda angle, **_: (angle,),
    "affine": lambda matrix, **_: tuple(matrix),
    "perspective": lambda coefficients, **_: tuple(coefficients),
    "crop": lambda top, left, height, width: (
        *(left, top, width, height),
        *(width * height, width / height),
    ),
}


@pytest.fixture
def recorded(monkeypatch):
    """The operations that torchvision would do, as tuples like those that are drawn."""
    operations = []

    def note(name, arguments):
        def record(image, *given, **named):
            operations.append((name, *arguments(*given, **named)))
            return image

        return record

    def apply_as_v1(self, image, name, magnitude, interpolation, fill):
        value = 255.0 * magnitude if name == "Solarize" else magnitude
        return v1.autoaugment._apply_op(image, name, value, InterpolationMode.NEAREST, None)

    for name, arguments in RECORDED.items():
        operation = name.removeprefix("adjust_").removeprefix("to_")
        monkeypatch.setattr(functional_pil, name, note(operation, arguments))
    blur = note("blur", lambda kernel, sigma: tuple(sigma))
    monkeypatch.setattr(functional, "gaussian_blur", blur)
    monkeypatch.setattr(functional_pil, "resize", lambda image, *_, **__: image)
    monkeypatch.setattr(_AutoAugmentBase, "_apply_image_or_video_transform", apply_as_v1)
    return operations


@pytest.fixture
def executor(name):
    """Compiled before the recorder is there: what was patched would run in Python."""
    return make_executor(compile_transform(TRANSFORMS[name]).plan)


def drawn(operations):
    """As they are recorded: a crop with its area and ratio, without the resize behind it."""
    found = [flat(operation) for operation in operations if operation[0] != "resize"]
    return [(*op[:5], op[3] * op[4], op[3] / op[4]) if op[0] == "crop" else op for op in found]


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.few(1)
def test_draws_are_distributed_as_torchvision_s(name, executor, recorded):
    ours = [drawn(executor.draw(11, 3, index, 0, *SIZE)) for index in range(OURS)]
    torch.manual_seed(1)
    random.seed(1)
    image, theirs = Image.new("RGB", SIZE), []
    for _ in range(THEIRS):
        recorded.clear()
        TRANSFORMS[name](image)
        theirs.append(list(recorded))
    assert_same_distribution(ours, theirs)


def draws_of(transform, count=MANY, seed=1, size=SIZE):
    executor = make_executor(compile_transform(transform).plan)
    return [executor.draw(seed, 0, index, 0, *size) for index in range(count)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (v1.RandomRotation((-10, 35)), v1.RandomRotation((-10, 36.5))),
        (v1.RandomInvert(0.5), v1.RandomInvert(0.53)),
    ],
)
def test_a_wrong_probability_or_range_is_noticed(right, wrong):
    base, same, other = (
        [[flat(operation) for operation in draw] for draw in draws_of(*each)]
        for each in ((right,), (right, FEWER, 2), (wrong, FEWER, 2))
    )
    assert_same_distribution(base, same)
    with pytest.raises(AssertionError):
        assert_same_distribution(base, other)


LAYERS = [
    [("invert", 0, 0.5), ("equalize", 0, 0.2), ("rotate", 1, 0.25), ("rotate", -1, 0.05)],
    [("hflip", 0, 0.0), ("solarize", 0.5, 1.0)],
    [("brightness", 0.1, 0.9), ("autocontrast", 0, 0.1)],
]


def test_each_layer_of_deep_autoaugment_draws_one_entry_by_its_probability():
    def entry(name, value=0, *_):
        return f"{name} {np.sign(value):.0f}" if name == "rotate" else name

    chosen = [
        np.random.default_rng(place).choice(
            [entry(*each) for each in layer], MANY, p=[probability for *_, probability in layer]
        )
        for place, layer in enumerate(LAYERS)
    ]
    # One name for what all layers draw: layers that depend on each other are noticed as well.
    theirs = [[(" ".join(names),)] for names in zip(*chosen, strict=True)]
    draws = draws_of(DeepAutoAugment(LAYERS))
    assert_same_distribution([[(" ".join(entry(*op) for op in ops),)] for ops in draws], theirs)
    assert {op[1] for ops in draws for op in ops if op[0] == "rotate"} == {30.0, -30.0}


def test_extended_rand_augment_draws_its_16_operations_equally_often():
    names = ["affine"] * 4  # shears and translations
    names += ["identity", "rotate", "brightness", "saturation", "contrast", "sharpness", "cutout"]
    names += ["posterize", "solarize", "solarize_add", "autocontrast", "equalize"]
    draws = draws_of(ExtendedRandAugment(1, 30))
    ours = [[(ops[0][0] if ops else "identity",)] for ops in draws]
    assert_same_distribution(ours, [[(name,)] for name in names * (MANY // 16)])
    assert {op[1] for ops in draws for op in ops if op[0] == "solarize_add"} == {110}
    assert max(max(op[3:5]) for ops in draws for op in ops if op[0] == "cutout") == 40


@pytest.mark.parametrize("step", [v1.RandAugment(1, 29), v1.RandAugment(1, 3, 10), v1.AugMix(9)])
def test_translations_are_those_of_torchvision_for_every_width(step):
    bins = getattr(step, "num_magnitude_bins", 10)
    place = getattr(step, "magnitude", 8)
    plan = compile_transform(step).plan
    (stage,) = plan.stages
    policy = getattr(stage, "operations", stage)
    ((translation,),) = [steps for steps in policy.policies if steps[0].op == "translate_x"]
    magnitude = replace(translation.magnitude, levels=(float(place),), either_sign=False)
    policy = replace(policy, policies=((replace(translation, magnitude=magnitude),),))
    executor = make_executor(replace(plan, stages=(policy,)))
    for width in range(1, 1500):
        ((_, matrix, *_),) = executor.draw(0, 0, 0, 0, width, 7)
        pixels = int(float(step._augmentation_space(bins, (7, width))["TranslateX"][0][place]))
        assert matrix[2] == (-width * 0.5 - pixels) + width * 0.5
