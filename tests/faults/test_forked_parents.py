"""A process that is forked while a loader's iterator is under way."""

import os
import traceback

import pytest
import torch
from torch.utils.data import Dataset, default_collate

from fusionloader import FusionLoader


class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index


def own_collate(samples):
    return default_collate(samples)


LOADERS = {
    "plan": lambda images: {"dataset": images},
    "rows": lambda images: {"dataset": Numbers()},
    "whole batches": lambda images: {"dataset": Numbers(), "collate_fn": own_collate},
}


@pytest.fixture(params=LOADERS)
def loader(request, eval_set):
    arguments = LOADERS[request.param](eval_set)
    with FusionLoader(**arguments, batch_size=4, num_workers=2, persistent_workers=True) as loader:
        yield loader


def in_a_child(body):
    """Runs it in a fork of this process, which has to end by itself."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def labels(batches):
    return [batch[1].tolist() for batch in batches]


@pytest.mark.few(1)
def test_a_child_that_iterates_has_workers_of_its_own(loader):
    everything = labels(loader)
    iterator = iter(loader)
    begun = labels([next(iterator)])

    def iterate():
        assert labels(loader) == everything
        assert labels(loader) == everything  # its own ones are kept as its parent's are
        loader.close()

    in_a_child(iterate)
    in_a_child(iterate)
    assert begun + labels(iterator) == everything
    assert labels(loader) == everything


@pytest.mark.few(1)
def test_a_child_takes_no_batch_from_its_parents_iterator(loader):
    everything = labels(loader)
    iterator = iter(loader)
    begun = labels([next(iterator)])

    def take():
        with pytest.raises(RuntimeError, match=r"process \d+, from which this one was forked"):
            next(iterator)

    in_a_child(take)
    assert begun + labels(iterator) == everything


def test_a_child_that_drops_or_closes_what_it_inherits_leaves_it_to_its_parent(loader):
    everything = labels(loader)
    iterator = iter(loader)
    begun = labels([next(iterator)])
    held = [iterator]

    def drop():
        nonlocal iterator
        iterator = None
        held.clear()
        loader.close()

    in_a_child(drop)
    assert begun + labels(iterator) == everything


def test_forks_that_have_ended_cost_no_descriptors_while_a_batch_is_kept(loader):
    batches = iter(loader)
    kept = next(batches)
    in_a_child(lambda: None)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        in_a_child(lambda: None)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert kept is not None
