"""Workers that die lose no sample."""

import ctypes
import random

import pytest
from ends import kill_all
from support.batches import same_batches
from support.campaigns import seeds
from support.images import train_transform
from support.waiting import PATIENCE
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

from fusionloader import DecodedCache, FusionLoader


class Crashing(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5:
            ctypes.string_at(0)
        return index


def killed_along_the_way(loader, generator):
    iterator = iter(loader)
    batches = [next(iterator)]
    kill_all(iterator)
    while True:
        if generator.random() < 0.4:
            generator.choice(iterator._workers).kill()
        try:
            batches.append(next(iterator))
        except StopIteration:
            return batches


@pytest.mark.kills
@pytest.mark.usefixtures("any_may_die")
@pytest.mark.parametrize("trial", seeds(2))
def test_killed_workers_of_a_plan_lose_no_sample(image_folder, trial):
    dataset = ImageFolder(str(image_folder), train_transform())
    batches = [list(range(start, start + 4)) for start in range(0, 40, 4)] * 5
    arguments = {"batch_sampler": batches, "num_workers": 2, "seed": trial}
    expected = list(FusionLoader(dataset, **arguments))
    loader = FusionLoader(dataset, **arguments)
    assert same_batches(expected, killed_along_the_way(loader, random.Random(trial)))
    assert loader.stats().worker_restarts > 0


@pytest.mark.kills
@pytest.mark.usefixtures("any_may_die")
@pytest.mark.parametrize("trial", seeds(1))
def test_workers_killed_while_they_fill_a_cache_lose_no_sample(image_folder, trial):
    dataset = ImageFolder(str(image_folder), train_transform())
    arguments = {"batch_size": 4, "num_workers": 2, "seed": trial}
    plain = FusionLoader(dataset, **arguments)
    expected = [list(plain) for _ in range(6)]
    loader = FusionLoader(dataset, **arguments, cache=DecodedCache("16MiB"))
    for epoch in expected:
        assert same_batches(epoch, killed_along_the_way(loader, random.Random(trial)))
    assert loader.stats().worker_restarts > 0
    assert 30 < loader.stats().decoded_cache.images <= 40


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_killed_as_they_start_are_replaced(method, train_set):
    arguments = {"num_workers": 2, "seed": 1, "multiprocessing_context": method}
    expected = list(FusionLoader(train_set, 4, **arguments))
    loader = FusionLoader(train_set, 4, **arguments)
    iterator = iter(loader)
    for process in iterator._workers:
        process.kill()
        process.join(PATIENCE)  # both are dead when the manager looks for the first time
    assert same_batches(expected, iterator)
    assert loader.stats().worker_restarts == 2


def test_a_sample_that_kills_its_workers_is_named():
    iterator = iter(FusionLoader(Crashing(), 4, num_workers=2, tiny_batch_size=1))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=r"killed by signal.*index 5"):
        next(iterator)
    assert next(iterator).tolist() == [8, 9, 10, 11]
