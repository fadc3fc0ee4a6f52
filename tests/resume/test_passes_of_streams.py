"""Iterable datasets with a state: which pass is resumed, and from where."""

import itertools
import os
import signal
from contextlib import nullcontext

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from fusionloader import FusionLoader

SIZE = 40


class Positioned(IterableDataset):
    """A pass takes a loaded position with its first sample; every other pass begins at 0."""

    def __init__(self, at_end_until_next_pass=False, killed=None):
        self.position, self.is_loaded = 0, False
        self.at_end_until_next_pass, self.killed, self.passes = at_end_until_next_pass, killed, 0

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if not self.is_loaded:
            self.position = 0
        self.is_loaded = False
        self.passes += 1
        if self.killed and (worker, self.passes) == (1, 2) and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        mine = range(worker, SIZE, workers)
        while self.position < len(mine):
            self.position += 1
            yield mine[self.position - 1]
        if not self.at_end_until_next_pass:
            self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position, self.is_loaded = state["position"], True


class Shuffled(IterableDataset):
    """Counts its passes behind the last sample, in a ``finally``."""

    def __init__(self):
        self.passes = self.position = 0

    def __iter__(self):
        order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(self.passes))
        try:
            while self.position < SIZE:
                self.position += 1
                yield int(order[self.position - 1])
        finally:
            self.passes, self.position = self.passes + 1, 0

    def state_dict(self):
        return {"passes": self.passes, "position": self.position}

    def load_state_dict(self, state):
        self.passes, self.position = state["passes"], state["position"]


def loader_of(workers, **its):
    dataset = Positioned(**its)
    return FusionLoader(dataset, 2, num_workers=workers, persistent_workers=workers > 0)


def samples(batches):
    return sorted(torch.cat(list(batches)).tolist())


@pytest.mark.usefixtures("any_may_die")
@pytest.mark.parametrize("taken", [0, 6, 20])
def test_a_worker_that_dies_as_a_pass_begins_begins_it_again(taken, tmp_path):
    loader = loader_of(2, killed=tmp_path / "killed")
    list(itertools.islice(loader, taken))
    assert samples(loader) == samples(loader) == list(range(SIZE))
    assert loader.stats().worker_restarts == 1


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("broken_off_after", [1, 6])
def test_a_pass_behind_one_that_was_broken_off_is_resumed_whole(workers, broken_off_after):
    first = loader_of(workers)
    list(itertools.islice(first, broken_off_after))
    begun = list(itertools.islice(first, 1))
    resumed = loader_of(workers)
    resumed.load_state_dict(first.state_dict())
    assert samples([*begun, *resumed]) == list(range(SIZE))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("at_end", [False, True])
def test_the_pass_behind_a_finished_one_is_whole(workers, at_end):
    first = loader_of(workers, at_end_until_next_pass=at_end)
    list(first)
    resumed = loader_of(workers, at_end_until_next_pass=at_end)
    resumed.load_state_dict(first.state_dict())
    assert samples(resumed) == samples(resumed) == list(range(SIZE))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_pass_behind_a_finished_one_is_the_next_one(workers):
    first = FusionLoader(Shuffled(), 2, num_workers=workers)
    list(first)
    state = first.state_dict()
    resumed = FusionLoader(Shuffled(), 2, num_workers=workers)
    resumed.load_state_dict(state)
    assert torch.equal(torch.cat(list(resumed)), torch.cat(list(first)))


def test_another_number_of_workers_begins_with_the_next_pass():
    loader = loader_of(2)
    assert samples(loader) == list(range(SIZE))
    iterator = iter(loader)
    begun = list(itertools.islice(iterator, 3))
    loader.resize_workers(4)
    assert samples([*begun, *iterator]) == list(range(SIZE))
    begun = list(itertools.islice(loader, 6))
    state = loader.state_dict()
    assert state["num_workers"] == len(state["workers"]) == 4
    for workers in (2, 4):
        resumed = loader_of(workers)
        with pytest.raises(ValueError, match="num_workers = 4") if workers == 2 else nullcontext():
            resumed.load_state_dict(state)
            assert samples([*begun, *resumed]) == list(range(SIZE))
