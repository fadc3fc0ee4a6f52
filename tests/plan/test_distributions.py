"""What is drawn is distributed as what torchvision draws.

torchvision runs with its functions on PIL images replaced by recorders, so that what it draws is
seen where it is used. Frequencies of operations and every argument are compared.
"""

import random
from dataclasses import replace

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

OURS, THEIRS = 3 * DRAWS, DRAWS
MANY, FEWER = 75_000, 25_000  # as `make draws` has them
SIZE = (331, 200)
POLICIES = {
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
}
OTHERS = {
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


class Recorder:
    """Operations that torchvision would do, as tuples like those that are drawn."""

    def __init__(self):
        self.operations = []

    def note(self, name, arguments):
        def record(image, *given, **named):
            self.operations.append((name, *arguments(*given, **named)))
            return image

        return record


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    for name in ("invert", "autocontrast", "equalize"):
        monkeypatch.setattr(functional_pil, name, made.note(name, lambda: ()))
    for kind in ("brightness", "contrast", "saturation", "hue", "sharpness"):
        replaced = made.note(kind, lambda factor: (factor,))
        monkeypatch.setattr(functional_pil, f"adjust_{kind}", replaced)
    for name in ("posterize", "solarize"):
        monkeypatch.setattr(functional_pil, name, made.note(name, lambda value: (value,)))
    affine = made.note("affine", lambda matrix, **_: tuple(matrix))
    monkeypatch.setattr(functional_pil, "affine", affine)
    monkeypatch.setattr(functional_pil, "rotate", made.note("rotate", lambda angle, **_: (angle,)))
    perspective = made.note("perspective", lambda coefficients, **_: tuple(coefficients))
    monkeypatch.setattr(functional_pil, "perspective", perspective)
    grayscale = made.note("grayscale", lambda *_: ())
    monkeypatch.setattr(functional_pil, "to_grayscale", grayscale)
    blur = made.note("blur", lambda kernel, sigma: tuple(sigma))
    monkeypatch.setattr(functional, "gaussian_blur", blur)

    def cropped(image, top, left, height, width):
        made.operations.append(("crop", left, top, width, height, width * height, width / height))
        return image

    monkeypatch.setattr(functional_pil, "crop", cropped)
    monkeypatch.setattr(functional_pil, "resize", lambda image, *_, **__: image)

    def apply_as_v1(self, image, name, magnitude, interpolation, fill):
        value = 255.0 * magnitude if name == "Solarize" else magnitude
        nearest = InterpolationMode.NEAREST
        return v1.autoaugment._apply_op(image, name, value, nearest, None)

    monkeypatch.setattr(_AutoAugmentBase, "_apply_image_or_video_transform", apply_as_v1)
    return made


@pytest.fixture
def executor(name):
    """Compiled before the recorder is there: what was patched would run in Python."""
    return make_executor(compile_transform({**POLICIES, **OTHERS}[name]).plan)


def drawn(operations):
    """As they are recorded: a crop with its area and ratio, without the resize behind it."""
    found = [flat(operation) for operation in operations if operation[0] != "resize"]
    return [(*op[:5], op[3] * op[4], op[3] / op[4]) if op[0] == "crop" else op for op in found]


@pytest.mark.parametrize("name", [*POLICIES, *OTHERS])
@pytest.mark.few(8)
def test_draws_are_distributed_as_torchvision_s(name, executor, recorder):
    transform = {**POLICIES, **OTHERS}[name]
    ours = [drawn(executor.draw(11, 3, index, 0, *SIZE)) for index in range(OURS)]
    torch.manual_seed(1)
    random.seed(1)
    image, theirs = Image.new("RGB", SIZE), []
    for _ in range(THEIRS):
        recorder.operations = []
        transform(image)
        theirs.append(recorder.operations)
    assert_same_distribution(ours, theirs)


def test_a_wrong_probability_or_range_is_noticed():
    def draws(transform, count, seed):
        executor = make_executor(compile_transform(transform).plan)
        return [
            [flat(op) for op in executor.draw(seed, 0, index, 0, *SIZE)] for index in range(count)
        ]

    base = draws(v1.RandomRotation((-10, 35)), MANY, 1)
    assert_same_distribution(base, draws(v1.RandomRotation((-10, 35)), FEWER, 2))
    with pytest.raises(AssertionError):
        assert_same_distribution(base, draws(v1.RandomRotation((-10, 36.5)), FEWER, 2))
    inverted = draws(v1.RandomInvert(0.5), MANY, 1)
    with pytest.raises(AssertionError):
        assert_same_distribution(inverted, draws(v1.RandomInvert(0.53), FEWER, 2))


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
