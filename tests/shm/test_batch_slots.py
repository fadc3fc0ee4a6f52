"""Whole batches in shared memory that outlive their iterator."""

import gc

import torch
from torch.utils.data import Dataset, default_collate

from fusionloader import FusionLoader


class Ones(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.ones(4096)


def collated(samples):
    return {"ones": default_collate(samples)}


def test_a_batch_outlives_an_iterator_that_the_garbage_collector_ends():
    iterator = iter(FusionLoader(Ones(), 4, num_workers=1, collate_fn=collated))
    batch = next(iterator)
    iterator.itself = iterator  # as a traceback may refer to it, and it to the traceback
    del iterator
    gc.collect()
    assert torch.equal(batch["ones"], torch.ones(4, 4096))
