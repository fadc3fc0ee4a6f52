"""Workers that die at their first step, or at one sample again and again."""

import ctypes

import pytest
from support.batches import same_batches
from support.waiting import PATIENCE
from torch.utils.data import Dataset

from fusionloader import FusionLoader


class Crashing(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5:
            ctypes.string_at(0)
        return index


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
