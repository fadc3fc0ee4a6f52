"""Who drops an error and the iterator drops its workers and batches, without the collector."""

import gc
import os
import signal
import weakref

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from fusionloader import FusionLoader


class Some(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("no sample 5")
        return torch.full((8,), float(index))


class Deadly(Some):
    def __getitem__(self, index):
        if index == 5 and torch.utils.data.get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Lengths(Some):
    """Of two lengths, which cannot be collated."""

    def __getitem__(self, index):
        return torch.zeros(8 if index < 5 else 9)


class Stream(IterableDataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return map(self.dataset.__getitem__, range(32))


def of_one_length(samples):
    return torch.stack(samples)


def refuses(samples):
    if any(sample[0] == 5 for sample in samples):
        raise ValueError("no sample 5")
    return torch.stack(samples)


def indices():
    yield from range(21)
    raise ValueError("no sample 5")


class Indices:
    def __iter__(self):
        return indices()

    def __len__(self):
        return 32


NUMBERS = [torch.full((8,), float(index)) for index in range(32)]
KINDS = {
    "rows": {"dataset": Some()},
    "whole batches": {"dataset": Some(), "collate_fn": of_one_length},
    "samples of two lengths": {"dataset": Lengths()},
    "collate function": {"dataset": NUMBERS, "collate_fn": refuses},
    "stream": {"dataset": Stream(Some())},
    "sampler": {"dataset": NUMBERS, "sampler": Indices()},
    "worker that dies": {"dataset": Deadly()},
    "stream whose worker dies": {"dataset": Stream(Deadly())},
}


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.few(8)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("no_collector")
def test_an_error_does_not_refer_to_itself(kind, workers):
    iterator = iter(FusionLoader(**KINDS[kind], batch_size=4, num_workers=workers))
    with pytest.raises((ValueError, RuntimeError), match="no sample 5|worker|equal size"):
        for _ in range(8):
            next(iterator)
    dropped = weakref.ref(iterator)
    del iterator
    assert dropped() is None
