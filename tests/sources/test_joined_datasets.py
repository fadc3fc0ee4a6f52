"""Joined datasets and subsets whose parts are not what they look like."""

import os

import numpy as np
import pytest
from support.images import eval_transform
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision.datasets import ImageFolder

from fusionloader import Cache, FusionLoader

workers = pytest.mark.parametrize("workers", [0, 1])


def targets(kind, dataset, workers):
    return [target for _, each in kind(dataset, 4, num_workers=workers) for target in each.tolist()]


@pytest.fixture
def folder(image_folder):
    """A folder whose targets name the samples."""
    made = ImageFolder(str(image_folder), eval_transform())
    made.samples = made.imgs = [(path, 100 + n) for n, (path, _) in enumerate(made.samples)]
    return made


class First(Dataset):
    def __init__(self, dataset, length):
        self.dataset, self.length = dataset, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.dataset[index]


class Short(ImageFolder):
    def __len__(self):
        return 5


def joined_first(folder):
    return ConcatDataset([First(folder, 3), folder, First(First(folder, 9), 2)])


def subset_of_joined(folder):
    return Subset(joined_first(folder), [0, 2, 3, 4, -1, -2, 3])


def joined_short(folder):
    short = Short(folder.root, folder.transform)
    short.samples = folder.samples
    return ConcatDataset([short, folder])


@workers
@pytest.mark.parametrize("joined", [joined_first, subset_of_joined, joined_short])
def test_parts_that_say_to_be_shorter_are(joined, folder, workers):
    dataset = joined(folder)
    assert targets(FusionLoader, dataset, workers) == targets(DataLoader, dataset, 0)


@workers
def test_parts_that_change_their_length_begin_where_they_did(folder, workers):
    other = ImageFolder(folder.root, folder.transform)
    dataset = ConcatDataset([other, Subset(folder, [1, 3])])
    other.samples = [*other.samples, (other.samples[0][0], 77)]
    dataset.datasets[1].indices.append(5)
    expected = targets(DataLoader, dataset, 0)
    assert targets(FusionLoader, dataset, workers) == expected
    loader = FusionLoader(dataset, 4, num_workers=workers)
    dataset.datasets[0].samples = other.samples[:-4]
    with pytest.raises(IndexError):
        list(loader)
    with pytest.raises(IndexError):
        list(DataLoader(dataset, 4))


class Permuted:
    """Indices that never end when they are iterated over."""

    def __len__(self):
        return 8

    def __getitem__(self, place):
        return (place * 3 + 1) % 8


@workers
@pytest.mark.timeout(60)
@pytest.mark.parametrize("indices", [Permuted(), {0: 5, 1: 7, 2: 2}, np.array([3, 1])])
def test_indices_of_a_subset_are_found_by_their_places(indices, folder, workers):
    dataset = Subset(folder, indices)
    assert targets(FusionLoader, dataset, workers) == targets(DataLoader, dataset, 0)


@workers
def test_samples_that_are_changed_in_place_are_used_by_the_next_epoch(folder, workers):
    folder.samples = [list(sample) for sample in folder.samples]
    loader = FusionLoader(folder, 4, num_workers=workers)
    list(loader)
    for sample in folder.samples:
        sample[1] += 50
    expected = [sample[1] for sample in folder.samples]
    assert [target for _, each in loader for target in each.tolist()] == expected


def test_a_cache_keeps_no_file_open_for_each_subset_there_was(folder, tmp_path):
    cache, opened = Cache("64MiB"), []
    for first in range(24):
        subset = Subset(folder, [first, first + 1, *range(30, 36)])
        list(FusionLoader(subset, 4, num_workers=1, cache=cache))
        opened.append(len(os.listdir("/proc/self/fd")))
    assert max(opened[16:]) <= max(opened[:16]) + 8
