"""Which plans draw random numbers."""

import pytest
from torchvision import transforms as v1
from torchvision.transforms import v2

from fusionloader.transforms.plan.stages import is_random
from fusionloader.transforms.plan.transforms import compile_transform

DETERMINED = [
    v1.Resize(30),
    v1.Resize((30, 20)),
    v1.CenterCrop(20),
    v1.Grayscale(),
    v1.Pad(2),
    v2.Resize(30),
]
RANDOM = [
    v1.RandomCrop(8),
    v1.RandomHorizontalFlip(),
    v1.RandomResizedCrop(8),
    v1.ColorJitter(0.5),
    v1.RandomApply([v1.ColorJitter(0.5)]),
    v2.RandomChoice([v2.Resize((8, 8)), v2.CenterCrop(8)]),
    v1.RandAugment(),
]


@pytest.mark.parametrize("step", DETERMINED, ids=repr)
def test_transforms_of_validations_draw_nothing(step):
    compiled = compile_transform(v1.Compose([step, v1.CenterCrop(8), v1.ToTensor()]))
    assert compiled.tail is None and not is_random(compiled.plan.stages)


@pytest.mark.parametrize("step", RANDOM, ids=lambda step: type(step).__name__)
def test_augmentations_draw(step):
    compiled = compile_transform(v1.Compose([step, v1.ToTensor()]))
    assert compiled.tail is None and is_random(compiled.plan.stages)
