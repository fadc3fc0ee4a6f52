"""Finished epochs give their shared memory and descriptors back at once, not when gc comes by."""

import gc
import os
from pathlib import Path

import pytest
import torch
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import v2

from fusionloader import Cache, FusionLoader
from tests.support.downloaded import in_memory


class Large:
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.zeros(1 << 17)


def held():
    """Bytes of shared memory that this process has mapped, and its open descriptors."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split("-", 1) for line in lines if "/memfd:fusionloader-" in line]
    mapped = sum(int(end.split()[0], 16) - int(begin, 16) for begin, end in spans)
    return mapped, len(os.listdir("/proc/self/fd"))


def stack(samples):
    return torch.stack(samples)


@pytest.mark.parametrize("collate_fn", [None, stack])
def test_epochs_leave_nothing_even_without_the_garbage_collector(collate_fn):
    loader = FusionLoader(Large(), 8, num_workers=1, collate_fn=collate_fn)
    for _ in loader:
        pass
    gc.collect()
    gc.disable()
    try:
        before = held()
        for _ in range(4):
            for _batch in loader:  # held when the epoch ends
                assert held()[0] > before[0]
        del _batch
        after = held()
    finally:
        gc.enable()
    assert after[0] <= before[0]
    assert after[1] <= before[1]


VIEW = v2.Compose([v2.ToImage(), v2.Resize((32, 32)), v2.ToDtype(torch.float32, scale=True)])


@pytest.fixture(params=["folder", "pixels"])
def dataset(request, image_folder):
    if request.param == "folder":
        return ImageFolder(image_folder, VIEW)
    return in_memory(CIFAR10, [VIEW], 40)


@pytest.mark.parametrize("cache", [None, Cache("64MB")], ids=["", "cache"])
def test_programs_that_keep_their_loaders_keep_few_tables(dataset, cache):
    # Accelerate keeps every loader that it prepares, and evaluations often make one each.
    loaders, counts = [], []
    for _ in range(32):
        loader = FusionLoader(dataset, 8, num_workers=1, cache=cache)
        assert len(list(loader)) == 5
        loaders.append(loader)
        counts.append(held())
    assert "native workers" in repr(loader)
    assert counts[-1] <= counts[15]
    for first, last in zip(loaders[0], loaders[-1], strict=True):  # the first's was forgotten
        assert torch.equal(first[0], last[0])
