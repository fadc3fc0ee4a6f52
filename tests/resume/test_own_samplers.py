"""Samplers that count their passes, or draw, in ways of their own."""

import itertools

import pytest
import torch
from support.batches import same_batches
from support.datasets import Counting, Numbers, Stream
from support.waiting import wait_until
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.distributed import DistributedSampler

from fusionloader import FusionLoader


class CountingFirst(Sampler):
    """Counts its passes when they begin; without a state."""

    def __init__(self, size=24):
        self.size, self.epoch = size, -1

    def __iter__(self):
        self.epoch += 1
        return iter([(index * 5 + self.epoch) % self.size for index in range(self.size)])

    def __len__(self):
        return self.size


class CountingLast(CountingFirst):
    """Counts its passes when they end, as Accelerate's ``SeedableRandomSampler`` does."""

    def __init__(self, size=24):
        super().__init__(size)
        self.epoch = 0

    def __iter__(self):
        yield from ((index * 5 + self.epoch) % self.size for index in range(self.size))
        self.epoch += 1


class Eager(CountingFirst):
    """Draws its order when it is asked for an iterator."""

    def __iter__(self):
        return iter(torch.randperm(self.size).tolist())


class EagerBatches(Eager):
    """A batch sampler that draws so."""

    def __iter__(self):
        return iter(torch.randperm(self.size).view(-1, 4).tolist())


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("sampler", [CountingFirst, CountingLast, Counting])
@pytest.mark.few(3)
def test_a_sampler_that_counts_its_passes_is_iterated_once_an_epoch(sampler, workers):
    theirs = DataLoader(Numbers(), 4, sampler=sampler())
    ours = FusionLoader(Numbers(), 4, sampler=sampler(), num_workers=workers)
    for _ in range(3):
        assert same_batches(theirs, ours)


def test_the_last_batches_of_a_sampler_that_counts_are_resumed():
    loader = FusionLoader(Numbers(22), 4, sampler=CountingLast(22), num_workers=2)
    iterator = iter(loader)
    begun = list(itertools.islice(iterator, 3))
    again = FusionLoader(Numbers(22), 4, sampler=CountingLast(22), num_workers=2)
    again.load_state_dict(loader.state_dict())
    found = torch.cat([*begun, *again])
    assert sorted(found.tolist()) == list(range(22))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 2, 6])
def test_a_sampler_that_draws_at_once_is_resumed_in_its_order(workers, taken):
    def make():
        return FusionLoader(Numbers(), 4, sampler=Eager(), num_workers=workers)

    torch.manual_seed(1)
    loader = make()
    list(loader)
    iterator = iter(loader)
    list(itertools.islice(iterator, taken))
    state = loader.state_dict()
    expected = list(iterator) if taken < 6 else []
    torch.manual_seed(2)
    again = make()
    again.load_state_dict(state)
    assert same_batches(expected, again)


@pytest.mark.parametrize("options", [{"sampler": Eager(), "batch_size": None}, {}])
def test_a_sampler_that_draws_at_once_does_it_once_without_workers(options):
    options = options or {"batch_sampler": EagerBatches()}
    torch.manual_seed(1)
    expected = list(DataLoader(Numbers(), **options))
    torch.manual_seed(1)
    assert same_batches(expected, FusionLoader(Numbers(), **options))


class Lazy(CountingFirst):
    """Goes on from a state at its first index, and says until then that it has begun anew.

    As ``StatefulDistributedSampler`` of torchdata.
    """

    yielded, loaded = 0, 0

    def __iter__(self):
        self.yielded, self.loaded = self.loaded, 0
        for index in range(self.yielded, self.size):
            self.yielded += 1
            yield index
        self.yielded = 0

    def state_dict(self):
        return {"yielded": self.yielded}

    def load_state_dict(self, state):
        self.yielded, self.loaded = 0, state["yielded"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_is_saved_before_the_first_resumed_batch_is_the_same_place(workers):
    def loader(state=None):
        made = FusionLoader(Numbers(), 4, sampler=Lazy(), num_workers=workers)
        if state is not None:
            made.load_state_dict(state)
        return made

    first = loader()
    begun = list(itertools.islice(first, 2))
    second = loader(first.state_dict())
    iterator = iter(second)
    third = loader(second.state_dict())
    assert torch.cat([*begun, *third]).tolist() == list(range(24))
    assert torch.cat([*begun, *iterator]).tolist() == list(range(24))


class CountingCalls(Numbers):
    """A dataset whose samples depend on its state. ``made`` counts them in all processes."""

    def __init__(self):
        super().__init__()
        self.calls, self.made = 0, torch.zeros(1).share_memory_()

    def __getitem__(self, index):
        self.calls += 1
        self.made += 1
        return torch.tensor([index, self.calls])

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


@pytest.mark.parametrize("begun", [0, 2])
def test_setting_the_epoch_after_iter_leaves_the_state_of_a_dataset(begun):
    def loader():
        sampler = DistributedSampler(range(24), 1, 0)
        return FusionLoader(CountingCalls(), 4, sampler=sampler, num_workers=1, prefetch_factor=4)

    first, early, late = loader(), loader(), loader()
    next_batches = iter(first)
    for _ in range(begun):
        next(next_batches)
    for other in (early, late):
        other.load_state_dict(first.state_dict())
    early.set_epoch(0)
    iterator = iter(late)
    wait_until(lambda: late.dataset.made >= 8)
    late.set_epoch(0)
    assert same_batches(list(early), list(iterator))


class Refusing(Counting):
    refuses = True

    def load_state_dict(self, state):
        if self.refuses:
            raise OSError("not now")
        super().load_state_dict(state)


def test_a_state_that_could_not_be_used_at_once_is_used_next():
    loader = FusionLoader(Numbers(), 4, sampler=Refusing(), num_workers=1)
    iterator = iter(loader)
    next(iterator)
    again = FusionLoader(Numbers(), 4, sampler=Refusing(), num_workers=1)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(OSError, match="not now"):
        iter(again)
    again.sampler.refuses = False
    assert same_batches(list(iterator), again)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_loaded_after_iter_is_that_of_an_iterator_without_batches(workers):
    loader = FusionLoader(Numbers(), 4, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    again = FusionLoader(Numbers(), 4, num_workers=workers)
    late = iter(again)
    again.load_state_dict(state)
    assert same_batches(list(iterator), list(late))


@pytest.mark.parametrize("workers", [0, 2])
def test_setting_the_epoch_of_a_stream_after_iter_does_not_lose_a_resumed_place(workers):
    def make():
        return FusionLoader(Stream([9] * max(workers, 1)), 2, num_workers=workers)

    loader = make()
    iterator = iter(loader)
    next(iterator)
    again = make()
    again.load_state_dict(loader.state_dict())
    late = iter(again)
    again.set_epoch(3)
    assert [batch[:, :2].tolist() for batch in late] == [
        batch[:, :2].tolist() for batch in iterator
    ]
