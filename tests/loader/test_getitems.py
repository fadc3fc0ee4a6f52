"""A dataset's own __getitems__ gets whole mini-batches, as from DataLoader."""

import pytest
import torch
from support.batches import same_batches
from torch.utils.data import DataLoader, Subset

from fusionloader import FusionLoader


class Padded:
    """Samples as long as the longest of their mini-batch; every seventh is left out."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        raise AssertionError("not one by one")

    def __getitems__(self, indices):
        longest = max(index % 11 for index in indices) + 1
        return tuple(torch.full((longest,), index) for index in indices if index % 7)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(
    "within", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(30))]
)
def test_mini_batches_are_made_whole(workers, within):
    dataset = within(Padded())
    ours = FusionLoader(dataset, 8, num_workers=workers)
    assert "__getitems__" in ours.explain()
    assert same_batches(DataLoader(dataset, 8), ours)
