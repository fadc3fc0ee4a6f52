"""Pipelines of documentations and references give what they give with ``DataLoader``."""

import random
import warnings

import numpy as np
import pytest
import torch
from deferred.pipelines import BLURRED, pipelines
from PIL import Image
from support.batches import equal
from support.images import photo
from support.seeding import SeededByIndex, seed_everything
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, WorkerPool, compile_plan

FILES = 4  # a list of transforms is taken apart from its third image on


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """As in workers; images are small."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@pytest.fixture(scope="module")
def known():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is deprecated is used all the same
        return pipelines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    (root / "a").mkdir()
    generator = np.random.default_rng(4)
    for number in range(FILES):
        photo(generator, 70 + 9 * number, 64).save(root / "a" / f"{number}.jpg")
    return root


# Sizes, or counts of boxes, that are drawn.
SIZED_AT_RANDOM = ("detection",)


class Own(Dataset):
    """A dataset as people write it, which has ``FILES`` samples of each pipeline."""

    def __init__(self, folder, pipelines):
        self.paths, self.pipelines = sorted(folder.glob("*/*")), pipelines

    def __len__(self):
        return FILES * len(self.pipelines)

    def __getitem__(self, index):
        number, file = divmod(index, FILES)
        return self.pipelines[number](Image.open(self.paths[file]).convert("RGB"))

    def batches(self):
        """The indices of each pipeline, whose samples are alike."""
        return [range(first, first + FILES) for first in range(0, len(self), FILES)]


def listed(samples):
    """A ``collate_fn`` as detection has it."""
    return list(samples)


def differences(names, found, expected, least=0.0):
    """Returns the names of the pipelines whose batches differ."""
    assert len(found) == len(expected) == len(names)
    return [
        name
        for name, ours, theirs in zip(names, found, expected, strict=True)
        if not equal(ours, theirs, 0.02 if name in BLURRED else least)
    ]


def epoch(loader):
    seed_everything(8)
    return list(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.few(1)
def test_an_own_dataset_gives_dataloaders_batches(workers, known, folder):
    """Of any shapes, in whole batches."""
    own = Own(folder, list(known.values()))
    dataset = SeededByIndex(own)
    options = {"batch_sampler": own.batches(), "num_workers": workers, "collate_fn": listed}
    expected, found = (epoch(kind(dataset, **options)) for kind in (DataLoader, FusionLoader))
    assert not differences(known, found, expected)


def test_an_own_dataset_gives_row_by_row_what_it_gives_without_deferral(known, folder):
    """Workers seed the generators for each sample."""
    dataset = Own(folder, list(known.values()))
    options = {"num_workers": 2, "seed": 3}
    found = epoch(FusionLoader(dataset, **options))
    expected = epoch(FusionLoader(dataset, deferred_images="off", **options))
    names = [name for name in known for _ in range(FILES)]
    assert not differences(names, found, expected)


class Each:
    """A transform that wraps others: gives what each of them makes of an image."""

    def __init__(self, pipelines):
        self.pipelines = pipelines

    def __call__(self, image):
        return {name: steps(image.copy()) for name, steps in self.pipelines.items()}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.few(1)
def test_a_class_that_wraps_them_gives_what_it_gives_without_deferral(workers, known, folder):
    dataset = ImageFolder(str(folder), Each(known))
    options = {"num_workers": workers, "seed": 3}
    found = epoch(FusionLoader(dataset, **options))
    expected = epoch(FusionLoader(dataset, deferred_images="off", **options))
    for (made, target), (plain, label) in zip(found, expected, strict=True):
        assert torch.equal(target, label)
        assert not differences(known, list(made.values()), list(plain.values()))


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2) as made:
        yield made


def is_drawn(steps, image):
    """Whether a pipeline draws at random."""
    results = []
    for seed in range(2):
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        results.append(steps(image))
    return not equal(*results, 0.0)


def kinds(batches):
    """What batches are like, without their values."""
    if isinstance(batches, (list, tuple)):
        return [kinds(each) for each in batches]
    if isinstance(batches, dict):
        return {name: kinds(each) for name, each in batches.items()}
    if isinstance(batches, (torch.Tensor, np.ndarray)):
        return type(batches), batches.dtype, tuple(batches.shape)
    return batches


def test_an_image_folder_gives_dataloaders_batches(known, folder, pool):
    """Where parameters are drawn at random, which is done by sample, their sizes and types.

    They are drawn alike with any number of workers, deferred or not.
    """
    image, wrong = Image.open(folder / "a" / "0.jpg").convert("RGB"), []
    for name, steps in known.items():
        dataset = ImageFolder(str(folder), steps)
        compiled = compile_plan(steps)
        expected = list(DataLoader(dataset))
        found = list(FusionLoader(dataset, seed=3))
        others = [FusionLoader(dataset, seed=3, pool=pool)]
        if compiled.tail is not None:
            others.append(FusionLoader(dataset, seed=3, deferred_images="off"))
        least = 0.02 if name in BLURRED else 0.0
        if not all(equal(list(other), found, least) for other in others):
            wrong.append(f"{name}: drawn otherwise")
        if not is_drawn(steps, image):
            if not equal(found, expected, least):
                wrong.append(f"{name}: other values")
        elif not name.startswith(SIZED_AT_RANDOM) and kinds(found) != kinds(expected):
            wrong.append(f"{name}: of another kind")
    assert not wrong
