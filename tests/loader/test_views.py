"""An index that the sampler gives several times is as many views of one image, made natively."""

import itertools

import pytest
import torch
from support.images import train_transform
from torch.utils.data import RandomSampler, Sampler
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


class Twice(Sampler):
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        return (index for index in self.sampler for _ in range(2))

    def __len__(self):
        return 2 * len(self.sampler)


def loader_of(folder, workers):
    dataset = ImageFolder(str(folder), train_transform())
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
    return FusionLoader(dataset, 8, sampler=Twice(order), num_workers=workers, seed=0)


@pytest.fixture(scope="module")
def epoch(image_folder):
    with loader_of(image_folder, 2) as loader:
        assert "python" not in loader.explain()
        return list(loader)


def test_both_views_are_of_one_image_and_differ(epoch):
    for views, targets in epoch:
        assert torch.equal(targets[::2], targets[1::2])
        assert not any(map(torch.equal, views[::2], views[1::2]))


def test_views_do_not_depend_on_the_number_of_workers(epoch, image_folder):
    with loader_of(image_folder, 1) as loader:
        for (views, _), (expected, _) in zip(loader, epoch, strict=True):
            assert torch.equal(views, expected)


def test_views_after_a_resumption_are_those_that_would_have_come(epoch, image_folder):
    with loader_of(image_folder, 2) as loader:
        list(itertools.islice(loader, 2))
        state = loader.state_dict()
    with loader_of(image_folder, 2) as loader:
        loader.load_state_dict(state)
        for (views, _), (expected, _) in zip(loader, epoch[2:], strict=True):
            assert torch.equal(views, expected)
