"""A dataset's own __getitems__ gets whole mini-batches, as from DataLoader."""

import numpy as np
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


class Joined:
    """``__getitems__`` returns what ``make`` makes of the indices, for ``collate_fn``."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 12

    def __getitem__(self, index):
        raise AssertionError("not one by one")

    def __getitems__(self, indices):
        return self.make(indices)


def unchanged(batch):
    return batch


@pytest.mark.parametrize(
    "make",
    [
        lambda indices: {"x": torch.tensor(indices), "y": [str(index) for index in indices]},
        lambda indices: torch.tensor(indices) * 2,
        lambda indices: (torch.tensor(indices), len(indices)),
        lambda indices: [] if 2 in indices else indices,
        lambda indices: sum(indices),
    ],
    ids=["dict", "tensor", "tuple", "an empty list", "a number"],
)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "within", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(1, 9))]
)
def test_collate_fn_gets_what_the_dataset_returns(make, workers, within):
    dataset = within(Joined(make))
    ours = FusionLoader(dataset, 4, num_workers=workers, collate_fn=unchanged)
    assert same_batches(DataLoader(dataset, 4, collate_fn=unchanged), ours)


def test_default_collate_gets_it_too():
    dataset = Joined(lambda indices: {"x": torch.tensor(indices)})
    for loader in (DataLoader(dataset, 4), FusionLoader(dataset, 4, num_workers=1)):
        with pytest.raises(KeyError):
            next(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_generator_is_used_up_by_collate_fn(workers):
    dataset = Joined(lambda indices: (torch.tensor(index) for index in indices))
    ours = FusionLoader(dataset, 4, num_workers=workers, collate_fn=next)
    assert same_batches(DataLoader(dataset, 4, collate_fn=next), ours)


class Noise:
    """Draws each sample at random; the fourth cannot be read."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 3:
            raise ValueError("unreadable")
        return torch.rand(4)


def test_a_subset_of_a_dataset_without_it_makes_samples_one_by_one():
    epochs = []
    for dataset in (Noise(), Subset(Noise(), range(12))):
        generator = torch.Generator().manual_seed(0)
        options = dict(on_error="skip", collate_fn=unchanged, generator=generator)
        epochs.append(list(FusionLoader(dataset, 4, num_workers=1, **options)))
    assert [len(batch) for batch in epochs[0]] == [3, 4, 4]
    assert same_batches(*epochs)


class Columns(Joined):
    """Indexes whole columns, by whatever the batch sampler gives."""

    def __init__(self):
        super().__init__(lambda batch: (type(batch).__name__, self.rows[batch]))
        self.rows = torch.arange(24.0).reshape(12, 2)


class WithState(Columns):
    """Each worker iterates over it on its own."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    "batches",
    [
        torch.arange(12).split(5),
        [slice(0, 5), slice(5, 12)],
        [np.arange(5), np.arange(5, 12)],
        [range(5), range(5, 12)],
        [(0, slice(2)), (3, slice(1))],
        [4, 7],
    ],
    ids=["tensor", "slice", "array", "range", "tuple", "integer"],
)
@pytest.mark.parametrize("dataset", [Columns(), WithState()], ids=["", "with a state"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_of_the_batch_sampler_is_given_as_it_is(batches, dataset, workers):
    options = dict(batch_sampler=batches, collate_fn=unchanged)
    ours = FusionLoader(dataset, num_workers=workers, **options)
    assert same_batches(DataLoader(dataset, **options), ours)


def test_a_batch_of_keys_is_given_as_it_is():
    dataset = Joined(lambda batch: [f"{key}{batch[key]}" for key in batch])
    options = dict(batch_sampler=[{"a": [0, 1], "b": [2]}, {"c": [3]}], collate_fn=unchanged)
    ours = FusionLoader(dataset, num_workers=1, **options)
    assert same_batches(DataLoader(dataset, **options), ours)


def test_an_iterator_of_indices_is_a_list_for_workers():
    options = dict(batch_sampler=[iter([0, 1]), iter([2])], collate_fn=unchanged)
    ours = FusionLoader(Joined(lambda batch: batch), num_workers=1, **options)
    assert list(ours) == [[0, 1], [2]]


def test_samples_made_one_by_one_need_no_list():
    rows = torch.arange(24.0).reshape(12, 2)
    batches = torch.arange(12).split(5)
    for within in (rows, Subset(rows, range(12))):
        ours = FusionLoader(within, batch_sampler=batches, num_workers=1, collate_fn=torch.stack)
        theirs = DataLoader(within, batch_sampler=batches, collate_fn=torch.stack)
        assert same_batches(theirs, ours)
