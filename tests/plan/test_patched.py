"""What a program patches into torchvision's classes and functions is run, not compiled."""

import functools

import pytest
import torch
from PIL import Image
from support.batches import same_batches
from support.downloaded import in_memory
from support.images import eval_transform, train_transform
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import CIFAR10, MNIST, ImageFolder
from torchvision.datasets import folder as folders
from torchvision.transforms import v2

from fusionloader import FusionLoader, compile_plan
from fusionloader.data.deferred import patches
from fusionloader.data.sources.datasets import compile_dataset

PATCHED = "its methods were replaced or hooked"


def wrapped(function):
    """As a decorator that is careful to look like what it wraps."""

    @functools.wraps(function)
    def wrapper(*arguments, **named):
        return function(*arguments, **named)

    return wrapper


PATCHES = [
    (v1.Resize, "forward", v1.Resize(8)),
    (v1.ToTensor, "__call__", v1.ToTensor()),
    (v1.RandomCrop, "get_params", v1.RandomCrop(8)),
    (v1.RandAugment, "_augmentation_space", v1.RandAugment()),
    (v2.Resize, "transform", v2.Resize(8)),
    (v2.RandomCrop, "make_params", v2.RandomCrop(8)),
    (v2.Transform, "forward", v2.CenterCrop(8)),
    (torch.nn.Module, "__call__", v1.CenterCrop(8)),
]


@pytest.mark.parametrize(("kind", "name", "transform"), PATCHES)
@pytest.mark.parametrize("wrap", [wrapped, lambda function: lambda *given: function(*given)])
def test_a_method_patched_on_a_class_means_python(monkeypatch, kind, name, transform, wrap):
    if "get_params" in name:
        monkeypatch.setattr(kind, name, staticmethod(wrap(getattr(kind, name))))
    else:
        monkeypatch.setattr(kind, name, wrap(getattr(kind, name)))
    steps = v1.Compose([transform] if kind is v1.ToTensor else [transform, v1.ToTensor()])
    assert PATCHED in compile_plan(steps).explain()
    monkeypatch.undo()
    assert "python" not in compile_plan(steps).explain()


def test_a_patched_compose_is_not_taken_apart(monkeypatch):
    monkeypatch.setattr(v1.Compose, "__call__", lambda self, image: torch.zeros(3))
    assert PATCHED in compile_plan(eval_transform()).explain()


@pytest.mark.parametrize("transform", [train_transform(), eval_transform()])
def test_methods_that_no_transform_calls_may_be_patched(monkeypatch, transform):
    monkeypatch.setattr(torch.nn.Module, "state_dict", lambda self: {})
    monkeypatch.setattr(v1.Resize, "__repr__", lambda self: "Resize")
    assert "python" not in compile_plan(transform).explain()


def test_a_patch_is_seen_in_the_batches(monkeypatch, image_folder):
    def upside_down(self, image):
        return v1.functional.vflip(v1.functional.center_crop(image, self.size))

    dataset = ImageFolder(str(image_folder), eval_transform())
    ours = FusionLoader(dataset, 8, num_workers=1)
    list(ours)
    monkeypatch.setattr(v1.CenterCrop, "forward", upside_down)
    assert same_batches(DataLoader(dataset, 8), ours)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("owner", "name"), [(Image, "open"), (Image.Image, "convert")])
def test_a_function_of_pillow_that_was_replaced_is_run(
    monkeypatch, request, image_folder, owner, name, workers
):
    request.addfinalizer(patches._made.cache_clear)
    patches._made.cache_clear()
    black = Image.new("RGB", (60, 50))
    monkeypatch.setattr(owner, name, lambda *given, **named: black)
    monkeypatch.setattr(Image.Image, "__exit__", lambda *given: None)
    dataset = ImageFolder(str(image_folder), eval_transform())
    ours = FusionLoader(dataset, 8, num_workers=workers)
    assert f"the program has replaced PIL.{owner.__name__.removeprefix('PIL.')}" in ours.explain()
    assert same_batches(DataLoader(dataset, 8), ours)


@pytest.mark.parametrize("family", [MNIST, CIFAR10])
def test_a_patched_getitem_of_a_dataset_is_called(monkeypatch, family):
    monkeypatch.setattr(family, "__getitem__", lambda self, index: index)
    assert compile_dataset(in_memory(family, [v1.ToTensor()])).plan is None


@pytest.mark.parametrize("name", ["pil_loader", "default_loader"])
def test_a_patched_loader_of_images_is_called(monkeypatch, image_folder, name):
    monkeypatch.setattr(folders, name, wrapped(getattr(folders, name)))
    dataset = ImageFolder(str(image_folder), eval_transform(), loader=folders.default_loader)
    assert compile_dataset(dataset).plan is None
    monkeypatch.undo()
    monkeypatch.setattr(folders.DatasetFolder, "__getitem__", lambda self, index: index)
    assert compile_dataset(ImageFolder(str(image_folder), eval_transform())).plan is None
