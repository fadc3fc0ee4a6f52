"""How much shared memory mini-batches in flight take."""

import pytest
import torch
from support.datasets import MadeRows

from fusionloader import FusionLoader

ROW = 1 << 16


def dataset():
    return MadeRows(torch.arange(200 * ROW // 8).view(200, -1))


def peak(**arguments):
    loader = FusionLoader(dataset(), 4, num_workers=2, prefetch_factor=8, **arguments)
    seen = torch.cat([batch[:, 0].clone() for (batch,) in loader])
    assert torch.equal(seen, dataset().tensors[0][:, 0])
    return loader.stats().shared_memory_bytes


@pytest.mark.parametrize(("limit", "batches"), [(None, 16), ("1MiB", 4), (1000, 2)])
def test_fewer_mini_batches_are_made_ahead_where_they_would_take_more(limit, batches):
    taken = peak(max_shared_bytes=limit) / (4 * ROW)
    assert batches <= taken <= batches + 3  # those in use and just returned


def test_the_limit_is_told():
    loader = FusionLoader(dataset(), 4, num_workers=1, max_shared_bytes="1MiB")
    assert loader.stats().shared_memory_limit_bytes == 0
    next(iter(loader))
    assert loader.stats().shared_memory_limit_bytes == 1 << 20


@pytest.mark.parametrize("limit", [0, -5, "much", True])
def test_a_limit_is_an_amount_of_memory(limit):
    with pytest.raises(ValueError, match="max_shared_bytes is written as"):
        FusionLoader(dataset(), 4, max_shared_bytes=limit)
