"""Classes around transforms: those that only call them are compiled, all others run as they are."""

import random

import pytest
import torch
from support.batches import same_batches
from support.images import eval_transform
from torch.utils.data import DataLoader
from torchvision import models
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional, v2

from fusionloader import FusionLoader


class Preset:
    """As the presets of torchvision's training scripts."""

    def __init__(self, inner):
        self.transforms = inner

    def __call__(self, image):
        return self.transforms(image)


class Steps:
    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, img):
        for step in self.steps:
            img = step(img)
        return img


class Named(torch.nn.Module):
    def __init__(self, before, after, flips):
        super().__init__()
        self.before, self.after, self.flips = before, after, flips
        self.flip = v2.RandomHorizontalFlip(1.0)

    def forward(self, image):
        image = self.before(image)
        if self.flips:
            image = self.flip(image)
        return self.after(image) if self.after is not None else image


def compiled_wrappers():
    size = v1.Resize((32, 40))
    yield "preset", Preset(eval_transform())
    yield "preset in a preset", Preset(Preset(eval_transform()))
    yield "in a compose", v1.Compose([Preset(size), v1.ToTensor()])
    yield "steps", Steps(size, Steps(v1.CenterCrop(20)), v1.ToTensor())
    yield "module", Named(size, v1.ToTensor(), flips=True)
    yield "module without", Named(eval_transform(), None, flips=False)
    weights = models.ResNet18_Weights.IMAGENET1K_V1
    yield "weights", weights.transforms(crop_size=28, resize_size=32)


@pytest.mark.parametrize(("name", "transform"), list(compiled_wrappers()))
def test_what_only_calls_transforms_is_compiled(image_folder, name, transform):
    images = ImageFolder(str(image_folder), transform)
    loader = FusionLoader(images, 5, num_workers=0)
    assert "python" not in loader.explain()
    assert same_batches(DataLoader(images, 5), loader)


class Converting(Preset):
    def __call__(self, image):
        return self.transforms(image.convert("RGB"))


class Sometimes(Preset):
    def __call__(self, image):
        return self.transforms(image) if random.random() < 2 else image


class Careful(Preset):
    def __call__(self, image):
        try:
            return self.transforms(image)
        except OSError:
            return torch.zeros(3, 32, 32)


class Counting(Preset):
    calls = 0

    def __call__(self, image):
        self.calls += 1
        return self.transforms(image)


class Collecting(Preset):
    def __init__(self, inner):
        super().__init__(inner)
        self.seen = []

    def __call__(self, image):
        self.seen.append(image)
        return self.transforms(image)


class BySize(Preset):
    def __call__(self, image):
        return self.transforms(image) if image.size != (1, 1) else None


class Twice(Preset):
    def __call__(self, image):
        first, second = self.transforms(image), self.transforms(image)
        return first if first is second else second


class Reused(Preset):
    def __call__(self, image):
        self.transforms(image)
        return image


class Changed(Preset):
    def __call__(self, image):
        return self.transforms(image) * 1.0


class Inherited(Preset):
    def __call__(self, image):
        return super().__call__(image)


class Equal(Preset):
    def __call__(self, image):
        return self.transforms(image) if image != 3 else 3


class Computed(Preset):
    @property
    def transforms(self):
        return self.held if random.random() < 2 else None

    @transforms.setter
    def transforms(self, inner):
        self.held = inner


class Attributed(Preset):
    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


class Hooked(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.transforms = inner
        self.register_forward_hook(lambda module, given, made: made + 1)

    def forward(self, image):
        return self.transforms(image)


class Functional(Preset):
    def __call__(self, image):
        return self.transforms(functional.hflip(image))


class Setting(Preset):
    def __call__(self, image):
        global latest
        latest = 1
        return self.transforms(image)


OTHERS = [Converting, Sometimes, Careful, Counting, Collecting, BySize, Twice, Changed, Inherited]
OTHERS += [Equal, Computed, Attributed, Hooked, Functional, Setting]


@pytest.mark.parametrize("kind", OTHERS)
def test_what_does_anything_else_runs_as_it_is(image_folder, kind):
    images = ImageFolder(str(image_folder), kind(eval_transform()))
    loader = FusionLoader(images, 5, num_workers=0)
    assert "python (" in loader.explain()
    assert same_batches(DataLoader(images, 5), loader)
    latest_seen = getattr(images.transform, "seen", [])
    assert len(latest_seen) in (0, 2 * len(images))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Converting, "__call__ uses convert of its image"),
        (Functional, "__call__ uses functional"),
        (Careful, "__call__ catches exceptions"),
        (Inherited, "__call__ uses super(), or contains functions"),
        (Reused, "__call__ does not return the transformed image"),
    ],
)
def test_explain_names_the_line_that_would_make_it_native(image_folder, kind, why):
    images = ImageFolder(str(image_folder), kind(eval_transform()))
    advice = "give the Compose in its attribute transforms itself"
    assert f"python ({why}: {advice})" in FusionLoader(images, 5).explain()


def test_an_attribute_that_is_changed_between_epochs_is_noticed(image_folder):
    images = ImageFolder(str(image_folder), Named(eval_transform(), None, flips=False))
    loader = FusionLoader(images, 5, num_workers=1)
    assert same_batches(DataLoader(images, 5), loader)
    images.transform.flips = True
    assert same_batches(DataLoader(images, 5), loader)
