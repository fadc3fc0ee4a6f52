"""Mini-batches that workers make whole: claimed, made again and seeded as samples are."""

import errno
import os
import random

import numpy as np
import pytest
import torch
from support.batches import same_batches
from support.waiting import PATIENCE
from torch.utils.data import Dataset

from fusionloader import FusionLoader
from fusionloader.system.shm import batch_slots


class Drawn(Dataset):
    """Samples of varying length that draw from all three generators."""

    def __len__(self):
        return 42

    def __getitem__(self, index):
        drawn = torch.rand(5 + index % 3), random.random(), float(np.random.rand())
        return {"index": index, "drawn": drawn}


def collated(samples):
    """Draws for the batch as a whole, too, and has a part for a slot."""
    lam, order = np.random.beta(0.2, 0.2), torch.randperm(len(samples))
    image = torch.stack([torch.full((1200,), sample["drawn"][1]) for sample in samples])
    return {"samples": samples, "lam": lam, "order": order, "image": image[order]}


def loader(dataset=None, workers=2, **options):
    common = {"collate_fn": collated, "seed": 3, "timeout": PATIENCE, "num_workers": workers}
    return FusionLoader(Drawn() if dataset is None else dataset, 4, **(common | options))


@pytest.fixture(scope="module")
def expected():
    return list(loader(workers=1))


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_batches_do_not_depend_on_the_number_of_workers(expected, workers):
    assert same_batches(expected, list(loader(workers=workers)))


@pytest.mark.usefixtures("any_may_die")
def test_batches_of_killed_workers_are_made_again(expected):
    iterator, found = iter(loader()), []
    for batch in iterator:
        found.append(batch)
        if len(found) % 3 == 1:
            iterator._workers[len(found) % 2].kill()
    assert same_batches(expected, found)


def test_an_epoch_goes_on_where_it_was_left(expected):
    first = loader()
    iterator = iter(first)
    begun = [next(iterator) for _ in range(4)]
    second = loader(workers=1)
    second.load_state_dict(first.state_dict())
    assert same_batches(expected, begun + list(second))


def test_workers_are_added_in_mid_epoch(expected):
    made = loader(workers=1)
    iterator = iter(made)
    begun = [next(iterator)]
    made.resize_workers(2)
    assert same_batches(expected, begun + list(iterator))
    assert len(iterator._workers) == 2


class Deadly(Drawn):
    def __getitem__(self, index):
        if index == 9:
            os._exit(3)
        return super().__getitem__(index)


def test_a_batch_that_ends_three_workers_is_named():
    names = "index 8, index 9, index 10, index 11"
    with pytest.raises(RuntimeError, match=f"3 workers died on the same samples.*{names}"):
        list(loader(Deadly()))


def raising(samples):
    if samples[0]["index"] == 8:
        raise KeyError("no eight")
    return collated(samples)


def test_an_error_of_collate_fn_is_one_of_its_batch(expected):
    iterator = iter(loader(collate_fn=raising))
    found = [next(iterator), next(iterator)]
    with pytest.raises(KeyError, match="(?s)in DataLoader worker process.*raising.*no eight"):
        next(iterator)
    assert same_batches(expected[:2] + expected[3:], found + list(iterator))


def lengths(samples):
    return [len(str(sample)) for sample in samples]


def test_a_batch_without_samples_goes_through_collate_fn():
    batches = [[0, 1], [], [2]]
    made = FusionLoader(range(3), batch_sampler=batches, num_workers=1, collate_fn=lengths)
    assert list(made) == [[1, 1], [], [1]]


class Lists(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index if isinstance(index, list) else [index]

    def __getitems__(self, indices):
        return [f"{index} of {len(indices)}" for index in indices]


def test_a_dataset_gets_its_indices_as_torchs_loop_gives_them():
    lists = FusionLoader(Lists(), 4, num_workers=2, collate_fn=list)
    assert list(lists) == [[f"{n} of 4" for n in range(4)], ["4 of 2", "5 of 2"]]
    one_by_one = FusionLoader(Lists(), None, sampler=[[1, 2], [3]], num_workers=2)
    assert list(one_by_one) == [[1, 2], [3]]
    assert one_by_one.stats().samples == 3


def long(samples):
    return ["x" * (1 << 17) + str(sample) for sample in samples]


def test_what_no_pipe_takes_goes_through_a_slot():
    made = iter(FusionLoader(range(40), 4, num_workers=2, collate_fn=long))
    found = list(made)
    assert found == [long(range(first, first + 4)) for first in range(0, 40, 4)]
    assert made._backend.receiver.slots._mapped


def test_a_slot_that_cannot_be_mapped_keeps_its_batch(expected, monkeypatch):
    iterator, failures = iter(loader()), []
    mapped = batch_slots._Mapped

    def refuse(*place):
        if len(failures) < 3:
            failures.append(OSError(errno.EMFILE, "planted"))
            raise failures[-1]
        return mapped(*place)

    monkeypatch.setattr(batch_slots, "_Mapped", refuse)
    found = []
    while len(found) < len(expected):
        try:
            found.append(next(iterator))
        except OSError as error:
            assert error is failures[-1]
    assert len(failures) == 3 and same_batches(expected, found)
