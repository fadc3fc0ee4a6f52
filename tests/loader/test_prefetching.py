"""How far the sampler and the workers are ahead of the training loop."""

import time

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from fusionloader import FusionLoader


class Recording(Sampler):
    """Remembers how many indices it was asked for."""

    def __init__(self, count):
        self.count = count
        self.asked = 0

    def __len__(self):
        return self.count

    def __iter__(self):
        for index in range(self.count):
            self.asked += 1
            yield index


@pytest.mark.parametrize("rest", [0, 0.05])
def test_the_sampler_is_as_far_ahead_as_dataloaders_however_fast_anyone_is(train_set, rest):
    asked = []
    for kind in (DataLoader, FusionLoader):
        sampler = Recording(len(train_set))
        loader = kind(train_set, 2, sampler=sampler, num_workers=2, prefetch_factor=4)
        iterator = iter(loader)
        asked.append([sampler.asked])
        for _ in loader.batch_sampler:
            next(iterator)
            asked[-1].append(sampler.asked)
            time.sleep(rest)
    assert asked[0] == asked[1]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_sampler_of_tensors_in_memory_is_as_far_ahead_as_dataloaders(workers):
    asked = []
    for kind in (DataLoader, FusionLoader):
        sampler = Recording(40)
        loader = kind(TensorDataset(torch.arange(40)), 4, sampler=sampler, num_workers=workers)
        asked.append([sampler.asked for _ in loader])
    assert asked[0] == asked[1]


def test_as_many_mini_batches_are_on_their_way_as_were_asked_for(train_set):
    iterator = iter(FusionLoader(train_set, 1, num_workers=2, prefetch_factor=8))
    for _ in range(16):
        next(iterator)
    assert len(iterator._manager.in_flight.wanted) == 16
