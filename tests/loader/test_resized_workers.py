"""Workers that come and go while an epoch runs."""

import os
import signal

import pytest
import torch
from support.batches import same_batches
from torch.utils.data import Dataset

from fusionloader import FusionLoader
from fusionloader.workers import worker_set

SIZES = [3, 1, 4, 2]


class Noise(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.rand(20), index


def resized_along_the_way(loader, sizes=SIZES):
    iterator = iter(loader)
    batches = []
    for count in sizes:
        loader.resize_workers(count)
        batches.append(next(iterator))
        assert len(iterator._workers) == count
    return [*batches, *iterator]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("kind", ["plan", "user code"])
def test_no_batch_changes_when_workers_come_and_go(train_set, kind):
    dataset = train_set if kind == "plan" else Noise()
    arguments = {"num_workers": 2, "seed": 3, "timeout": 60}
    expected = list(FusionLoader(dataset, 4, **arguments))
    loader = FusionLoader(dataset, 4, **arguments)
    assert same_batches(expected, resized_along_the_way(loader))
    assert loader.stats().worker_restarts == 0


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_persistent_workers_stay_as_many_as_were_asked_for(train_set):
    loader = FusionLoader(train_set, 4, num_workers=1, persistent_workers=True, seed=0)
    with loader:
        resized_along_the_way(loader)
        iterator = iter(loader)
        next(iterator)
        assert len(iterator._workers) == loader.num_workers == SIZES[-1]


def test_more_workers_have_more_batches_in_flight(train_set):
    loader = FusionLoader(train_set, 2, num_workers=1, prefetch_factor=2)
    iterator = iter(loader)
    next(iterator)
    assert len(iterator._manager.in_flight.wanted) == 2
    loader.resize_workers(2)
    next(iterator)
    assert len(iterator._manager.in_flight.wanted) == 4


def test_the_next_iterator_has_the_new_number(train_set):
    loader = FusionLoader(train_set, 4, num_workers=1)
    loader.resize_workers(2)
    iterator = iter(loader)
    next(iterator)
    assert len(iterator._workers) == 2


def test_the_samples_of_a_worker_that_does_not_end_are_given_to_nobody(monkeypatch):
    """A stopped process stands for one that waits in the kernel, and survives a kill."""
    expected = list(FusionLoader(Noise(), 4, num_workers=2, seed=3))
    loader = FusionLoader(Noise(), 4, num_workers=2, seed=3)
    iterator = iter(loader)
    batches = [next(iterator)]
    process = iterator._workers[1]
    with monkeypatch.context() as patched:
        patched.setattr(worker_set, "_PATIENCE_SECONDS", 0.1)
        patched.setattr(process, "kill", lambda: os.kill(process.pid, signal.SIGSTOP))
        loader.resize_workers(1)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=f"pid {process.pid}.*has not ended 0.1 s after"):
                next(iterator)
        assert len(iterator._workers) == 2
    batches += iterator
    assert len(iterator._workers) == 1
    assert same_batches(expected, batches)


@pytest.mark.parametrize("count", [0, -1, 1.5, None])
def test_what_is_no_number_of_workers_is_refused(train_set, count):
    with pytest.raises(ValueError, match="num_workers should be a positive int"):
        FusionLoader(train_set, num_workers=1).resize_workers(count)


def test_a_loader_without_workers_gets_none(train_set):
    with pytest.raises(ValueError, match="num_workers=0 has no workers"):
        FusionLoader(train_set).resize_workers(2)
