"""Every kind of shards: the batches are those of the same files in a folder."""

import pickle

import pytest
import torch
from support.batches import equal, same_batches
from support.images import eval_transform, train_transform
from support.shard_writers import FAMILIES
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources.datasets import compile_dataset


@pytest.fixture(scope="module", params=FAMILIES)
def opened(request, image_folder, tmp_path_factory):
    """Opens the images of the folder in shards of one family, with a transform."""
    folder = tmp_path_factory.mktemp(request.param)
    return FAMILIES[request.param](ImageFolder(str(image_folder)), folder)


def shuffled(dataset):
    generator = torch.Generator().manual_seed(3)
    return FusionLoader(dataset, 4, shuffle=True, num_workers=2, seed=5, generator=generator)


@pytest.mark.few(10)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_torch_and_of_the_folder(opened, eval_set, workers):
    dataset = opened(eval_transform())
    ours = list(FusionLoader(dataset, 8, num_workers=workers))
    assert same_batches(DataLoader(dataset, 8), ours)
    assert same_batches(DataLoader(eval_set, 8), ours)


@pytest.mark.few(3)
def test_shuffled_and_augmented_batches_are_those_of_the_folder(opened, train_set):
    dataset = opened(train_transform())
    assert compile_dataset(dataset).complete
    assert same_batches(shuffled(train_set), shuffled(dataset))


@pytest.mark.few(3)
def test_a_loader_goes_on_where_another_one_stopped(opened):
    whole = list(shuffled(opened(train_transform())))
    first = shuffled(opened(train_transform()))
    batches = iter(first)
    seen = [next(batches) for _ in range(3)]
    state = first.state_dict()
    second = shuffled(opened(train_transform()))
    second.load_state_dict(state)
    assert all(map(equal, whole, [*seen, *second])) and len(whole) == 10


@pytest.mark.few(4)
def test_parts_of_it_are_parts_of_the_folder(opened, eval_set):
    part = [39, 3, 3, 17]
    assert same_batches(
        DataLoader(Subset(eval_set, part), 2),
        FusionLoader(Subset(opened(eval_transform()), part), 2, num_workers=1),
    )
    sampler = DistributedSampler(eval_set, 2, 1)
    assert same_batches(
        DataLoader(eval_set, 4, sampler=sampler),
        FusionLoader(opened(eval_transform()), 4, sampler=sampler, num_workers=1),
    )


def test_a_pickled_dataset_is_the_same(opened):
    dataset = opened(eval_transform())
    again = pickle.loads(pickle.dumps(dataset))
    assert again.read_encoded(17) == dataset.read_encoded(17)
    assert again.name(17) == dataset.name(17)


def test_targets_are_transformed(opened):
    plain = opened(None)
    changed = opened(None, target_transform=lambda target: int(target) + 10)
    assert [changed[i][1] for i in range(40)] == [plain[i][1] + 10 for i in range(40)]
