"""Datasets of tensors in memory: DataLoader's batches, by a gather in the training process."""

import numpy as np
import pytest
import torch
from support.waiting import wait_until_nothing_is_left
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from torch.utils.data._utils.collate import default_collate_fn_map

from fusionloader import FusionLoader

COUNT = 23


def rows(*shape, dtype=torch.float32):
    return (torch.randn(COUNT, *shape) * 50).to(dtype)


def tensors():
    return TensorDataset(rows(3), torch.arange(COUNT), rows(2, 1, 4, dtype=torch.uint8))


DATASETS = {
    "tensors": tensors,
    "scalars": lambda: TensorDataset(torch.arange(COUNT)),
    "a tensor": lambda: rows(2),
    "images": lambda: TensorDataset(rows(3, 5, 4), rows(1, 1, 1), rows(1, 4, 4)),
    "nothing in a row": lambda: TensorDataset(rows(0), rows(2, 0)),
    "other types": lambda: TensorDataset(
        *(rows(2, dtype=each) for each in (torch.bool, torch.float16, torch.complex64))
    ),
    "a subset": lambda: Subset(tensors(), [3, -1, 3, 0, 20, 7]),
    "a subset of a subset": lambda: Subset(Subset(tensors(), range(20)), np.arange(10)[::-1]),
    "a split": lambda: random_split(tensors(), [15, 8], torch.Generator().manual_seed(1))[0],
    "a stack": lambda: StackDataset(rows(3), tensors()),
    "a stack by names": lambda: StackDataset(image=rows(3), label=torch.arange(COUNT)),
    "a subset of a stack": lambda: Subset(StackDataset(image=rows(3), rest=tensors()), range(9)),
    "strides": lambda: TensorDataset(rows(4, 3).transpose(1, 2), rows(3, 4, 4)[..., 1]),
    "last channels": lambda: TensorDataset(rows(3, 4, 4).to(memory_format=torch.channels_last)),
    "conjugates": lambda: TensorDataset(rows(2, dtype=torch.complex64).conj()),
    "long rows": lambda: TensorDataset(
        rows(9000), *(rows(9000, dtype=each) for each in (torch.bfloat16, torch.bool))
    ),
    "long rows from the end": lambda: Subset(TensorDataset(rows(9000)), range(-1, -COUNT, -1)),
    "expanded": lambda: TensorDataset(rows(1).expand(COUNT, 4)),
}


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
        return
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous() == theirs.is_contiguous()


def epoch(kind, dataset, options):
    torch.manual_seed(5)
    batches = list(kind(dataset, **options))
    return batches, torch.rand(1)


@pytest.mark.few(24)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{"batch_size": 4, "shuffle": True}, {"batch_size": 7}])
@pytest.mark.parametrize("name", DATASETS)
def test_batches_are_those_of_data_loader(name, options, workers):
    dataset = DATASETS[name]()
    ours, drawn = epoch(FusionLoader, dataset, options | {"num_workers": workers})
    theirs, expected = epoch(DataLoader, dataset, options | {"num_workers": 0})
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)
    assert drawn == expected


def test_a_batch_shares_no_memory_with_the_dataset():
    data = torch.zeros(8, 2)
    for batch in FusionLoader(data, 8, num_workers=1):
        batch += 1
        assert batch.untyped_storage().nbytes() == 64
    assert not data.any()


def test_there_is_no_worker():
    loader = FusionLoader(tensors(), 4, num_workers=2, persistent_workers=True, timeout=5)
    assert "gathered from tensors in memory" in loader.explain()
    first, second = ([batch[1] for batch in loader] for _ in range(2))
    assert torch.equal(torch.cat(first), torch.cat(second))
    wait_until_nothing_is_left()
    assert loader.stats().samples == 2 * COUNT


def test_a_program_that_asks_for_the_workers_is_told_that_there_are_none():
    iterator = iter(FusionLoader(tensors(), 4, num_workers=2))
    next(iterator)
    assert list(iterator._workers) == []


def test_an_epoch_goes_on_where_it_was_left():
    loader = FusionLoader(tensors(), 4, shuffle=True, num_workers=2, seed=3)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    rest = [batch[1] for batch in iterator]
    other = FusionLoader(tensors(), 4, shuffle=True, num_workers=0, seed=3)
    other.load_state_dict(state)
    assert torch.equal(torch.cat([batch[1] for batch in other]), torch.cat(rest))


@pytest.mark.parametrize("index", [COUNT, "5", 1.5])
def test_a_wrong_index_raises_what_it_does_in_data_loader(index):
    def raised(kind):
        with pytest.raises(Exception) as found:  # noqa: PT011
            list(kind(tensors(), 2, sampler=[0, 1, 2, index]))
        return found.value

    ours, theirs = raised(FusionLoader), raised(DataLoader)
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)
    skipping = FusionLoader(tensors(), 2, sampler=[0, 1, 2, index, 4], on_error="skip")
    assert [batch[1].tolist() for batch in skipping] == [[0, 1], [2], [4]]


@pytest.mark.parametrize("index", [np.int64(4), torch.tensor(4), True, np.int32(4), [1, 2]])
def test_an_index_of_any_kind_gives_the_same_batch(index):
    dataset = tensors()
    ours, theirs = (
        list(kind(dataset, 1, sampler=[index, 3])) for kind in (FusionLoader, DataLoader)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


def test_workers_make_batches_of_more_than_a_mebibyte():
    dataset = TensorDataset(rows(10_000))
    loader = FusionLoader(dataset, 16, num_workers=1)
    assert "gathered" in loader.explain()
    larger = FusionLoader(dataset, 32, num_workers=1)
    assert "gathered" not in larger.explain()
    assert_same(list(larger), list(DataLoader(dataset, 32)))
    assert "gathered" in FusionLoader(dataset, 32).explain()


def test_code_of_the_users_own_is_run():
    class Backwards(list):
        def __getitem__(self, index):
            return super().__getitem__(-1 - index)

    dataset = TensorDataset(torch.arange(4))
    subset = Subset(dataset, Backwards(range(4)))
    assert next(iter(FusionLoader(subset, 4)))[0].tolist() == [3, 2, 1, 0]
    other = StackDataset(torch.arange(4))
    other.__getitems__ = lambda indices: [(index + 7,) for index in indices]
    assert next(iter(FusionLoader(other, 4)))[0].tolist() == [7, 8, 9, 10]


def test_what_changes_a_sample_is_seen(monkeypatch):
    class Scaled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * part for part in super().__getitem__(index))

    twice = torch.arange(4) * 2
    assert torch.equal(next(iter(FusionLoader(Scaled(torch.arange(4)), 4)))[0], twice)
    dataset = TensorDataset(torch.arange(4))
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, i: (2 * self.tensors[0][i],))
    assert torch.equal(next(iter(FusionLoader(dataset, 4)))[0], twice)


def test_a_registered_collation_of_tensors_is_used(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, **_: len(batch))
    for workers in (0, 1):
        assert next(iter(FusionLoader(tensors(), 4, num_workers=workers))) == [4, 4, 4]


def test_a_dataset_that_is_changed_in_mid_epoch_is_taken_as_it_is_then():
    dataset = TensorDataset(torch.arange(8))
    iterator = iter(FusionLoader(dataset, 4))
    next(iterator)
    dataset.tensors = (torch.arange(8) * 10,)
    assert torch.equal(next(iterator)[0], torch.arange(4, 8) * 10)


def test_interrupted_draws_lose_no_batch():
    class Interrupted(RandomSampler):
        left = 1

        def __iter__(self):
            for number, index in enumerate(super().__iter__()):
                if number == 9 and self.left:
                    self.left -= 1
                    raise KeyboardInterrupt
                yield index

    dataset = TensorDataset(torch.arange(16))
    loader = FusionLoader(dataset, 4, sampler=Interrupted(dataset), num_workers=1)
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):  # two are ahead
        next(iterator)
    assert len([next(iterator) for _ in range(2)]) == 2
    with pytest.raises(RuntimeError, match="the sampler was left by KeyboardInterrupt"):
        next(iterator)
    assert len(list(loader)) == 4
