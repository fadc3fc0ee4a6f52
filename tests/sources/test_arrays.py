"""torchvision's datasets in memory: the same batches as torch's, from every kind of worker."""

import numpy as np
import pytest
import torch
from support.batches import same_batches
from support.downloaded import in_memory
from torch.utils.data import DataLoader, Subset
from torchvision import transforms as v1
from torchvision.datasets import CIFAR10, CIFAR100, MNIST, SVHN, FashionMNIST

from fusionloader import FusionLoader
from fusionloader.data.sources import datasets
from fusionloader.data.sources.datasets import compile_dataset

DIGITS = [v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))]


@pytest.mark.parametrize("family", [MNIST, FashionMNIST, CIFAR10, CIFAR100, SVHN])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_torchs(family, workers):
    grey = issubclass(family, MNIST)
    transform = DIGITS if grey else [v1.ToTensor(), v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
    dataset = in_memory(family, transform)
    assert compile_dataset(dataset).complete
    assert same_batches(DataLoader(dataset, 8), FusionLoader(dataset, 8, num_workers=workers))


class SoughtTargets(MNIST):
    @property
    def targets(self):
        return self._targets + 1

    @targets.setter
    def targets(self, targets):
        self._targets = targets


def test_targets_that_are_a_property_are_not_compiled():
    dataset = in_memory(MNIST, DIGITS)
    dataset.__class__ = SoughtTargets
    dataset._targets = vars(dataset).pop("targets")
    assert "a property targets" in compile_dataset(dataset).explain()
    assert same_batches(DataLoader(dataset, 8), FusionLoader(dataset, 8, num_workers=1))


@pytest.mark.parametrize(
    "steps",
    [
        [v1.Resize(32), *DIGITS],
        [v1.Resize((20, 36)), *DIGITS],
        [v1.CenterCrop(40), v1.PILToTensor()],
        [v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0), *DIGITS],
        [v1.Pad(2), *DIGITS],  # what is not compiled runs in Python
        [v1.Grayscale(3), v1.ToTensor()],
    ],
    ids=str,
)
def test_grey_images_are_transformed_as_torchvision_does(steps):
    dataset = in_memory(MNIST, steps)
    assert same_batches(DataLoader(dataset, 8), FusionLoader(dataset, 8, num_workers=1))


def test_random_crops_of_grey_images_are_windows_of_the_padded_image():
    dataset = in_memory(MNIST, [v1.RandomCrop(28, padding=4), v1.PILToTensor()], 20)
    assert compile_dataset(dataset).complete
    padded = np.pad(dataset.data.numpy(), ((0, 0), (4, 4), (4, 4)))
    for images, _ in FusionLoader(dataset, 20, num_workers=1, seed=3):
        for image, whole in zip(images[:, 0].numpy(), padded, strict=True):
            windows = np.lib.stride_tricks.sliding_window_view(whole, (28, 28))
            assert (windows == image).all((2, 3)).any()


def test_spawned_workers_and_subsets():
    dataset = Subset(in_memory(CIFAR10, [v1.ToTensor()]), [3, 3, 7, 49, 0])
    ours = FusionLoader(dataset, 2, num_workers=1, multiprocessing_context="spawn")
    assert same_batches(DataLoader(dataset, 2), ours)


@pytest.mark.parametrize("what", ["data", "targets"])
def test_a_change_between_epochs_is_seen(what):
    dataset = in_memory(MNIST, DIGITS)
    ours = FusionLoader(dataset, 8, num_workers=1)
    assert same_batches(DataLoader(dataset, 8), ours)
    getattr(dataset, what)[5] += 1
    assert same_batches(DataLoader(dataset, 8), ours)


def test_an_index_beyond_the_end_is_an_error():
    dataset = in_memory(MNIST, DIGITS)
    with pytest.raises(IndexError, match="index 50"):
        list(FusionLoader(dataset, 1, sampler=[0, 50], num_workers=1))


def test_a_crop_that_does_not_fit_names_the_sample():
    dataset = in_memory(MNIST, [v1.RandomCrop(30), *DIGITS])
    with pytest.raises(ValueError, match=r"(?s)index 0.*larger than input image"):
        list(FusionLoader(dataset, 1, num_workers=1))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_arrays_are_looked_at_once_an_epoch_not_once_a_sample(workers, monkeypatch):
    looks = []
    known = datasets.pixel_arrays
    monkeypatch.setattr(datasets, "pixel_arrays", lambda dataset: looks.append(1) or known(dataset))
    dataset = in_memory(CIFAR10, [v1.ToTensor(), v1.Lambda(lambda image: image * 2)])
    batches = FusionLoader(dataset, 10, num_workers=workers, multiprocessing_context=None)
    assert same_batches(DataLoader(dataset, 10), batches)
    assert len(looks) < 10


class Changed(MNIST):
    def __getitem__(self, index):
        return torch.zeros(1), index


def test_a_getitem_of_its_own_is_not_compiled():
    compiled = compile_dataset(in_memory(Changed, DIGITS))
    assert compiled.plan is None


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("data", torch.zeros(50, 28, 28)),
        ("targets", torch.zeros(50)),
        ("targets", torch.zeros(49, dtype=torch.int64)),
    ],
)
def test_arrays_that_are_not_pixels_and_classes_are_not_compiled(attribute, value):
    dataset = in_memory(MNIST, DIGITS)
    setattr(dataset, attribute, value)
    assert compile_dataset(dataset).plan is None


ODD_TARGETS = {
    "int64 array": lambda targets: np.array(targets),
    "int32 array": lambda targets: np.array(targets, np.int32),
    "uint8 array": lambda targets: np.array(targets, np.uint8),
    "tensor": lambda targets: torch.tensor(targets),
    "int32 tensor": lambda targets: torch.tensor(targets, dtype=torch.int32),
    "bools": lambda targets: [target > 4 for target in targets],
    "numpy numbers": lambda targets: [np.int16(target) for target in targets],
    "a bool among them": lambda targets: [True, *targets[1:]],
}


def _type_of(target):
    return f"{type(target).__name__} {getattr(target, 'dtype', '')}"


@pytest.mark.few(20)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("change", ODD_TARGETS.values(), ids=ODD_TARGETS)
def test_targets_keep_their_type(change, transformed, subset, workers):
    dataset = in_memory(CIFAR10, [v1.ToTensor()], 12)
    dataset.targets = change(dataset.targets)
    dataset.target_transform = _type_of if transformed else None
    dataset = Subset(dataset, [3, 1, 4, 1, 5, 9]) if subset else dataset
    assert same_batches(DataLoader(dataset, 4), FusionLoader(dataset, 4, num_workers=workers))
