"""``pin_memory`` of whole batches: a thread copies them while training computes, as in torch."""

import threading

import pytest
import torch
from support.waiting import PATIENCE, wait_until

from fusionloader import FusionLoader
from fusionloader.engine.iterators.pinning import Pinning


class Batch:
    """What torch's ``pin_memory`` calls where it knows no device: a batch's own method."""

    def __init__(self, samples):
        self.values, self.pinned_in = torch.tensor(samples), None

    def pin_memory(self):
        if self.values[0] == 12:
            raise ValueError("cannot be pinned")
        self.pinned_in, self.threads = threading.current_thread().name, torch.get_num_threads()
        return self


class Counted:
    """A sampler that counts the indices it was asked for."""

    asked = 0

    def __len__(self):
        return 40

    def __iter__(self):
        for index in range(40):
            self.asked += 1
            yield index


@pytest.fixture
def loader():
    options = {"sampler": Counted(), "num_workers": 2, "collate_fn": Batch, "timeout": PATIENCE}
    return FusionLoader(list(range(40)), 4, **options)


@pytest.fixture
def iterator(loader, monkeypatch):
    made = iter(loader)
    # Without a device torch pins nothing, and the iterator has none.
    monkeypatch.setattr(made, "_pinning", Pinning(made._manager.deliver_whole, None))
    threads = torch.get_num_threads()
    yield made
    torch.set_num_threads(threads)  # also of threads that begin later


def test_batches_are_pinned_in_a_thread_and_one_that_cannot_be_is_an_error(iterator):
    found = []
    for number in range(10):
        if number == 3:
            with pytest.raises(ValueError, match="cannot be pinned"):
                next(iterator)
        else:
            found.append(next(iterator))
    assert [each.values.tolist() for each in found] == [
        list(range(first, first + 4)) for first in range(0, 40, 4) if first != 12
    ]
    assert {each.pinned_in for each in found} == {"fusionloader-pin_0"}
    assert next(iterator, None) is None


def test_an_epoch_that_is_left_waits_for_what_is_pinned(loader, iterator):
    next(iterator)
    iterator._reset(loader)
    assert next(iterator).values.tolist() == [0, 1, 2, 3]


def test_the_thread_takes_one_core_and_the_device_of_the_caller(monkeypatch, request):
    devices = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(
        torch.cuda,
        "set_device",
        lambda index: devices.append((index, threading.current_thread().name)),
    )
    assert next(request.getfixturevalue("iterator")).threads == 1
    assert devices == [(2, "fusionloader-pin_0")]


def test_the_sampler_is_not_further_ahead_for_a_batch_that_is_pinned_early(loader, iterator):
    for returned in range(1, 4):
        flying = iterator._in_flight
        wait_until(lambda flying=flying: flying.ready == len(flying.wanted))
        next(iterator)
        assert loader.sampler.asked == 4 * (4 + returned)
