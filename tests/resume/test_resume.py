"""A resumed epoch has the same batches as an uninterrupted one."""

import json
import warnings

import pytest
import torch
from support.batches import same_batches
from support.datasets import Nested, Random, Words
from support.waiting import Flag
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
)

from fusionloader import FusionLoader


def loader_of(dataset, workers=2, **arguments):
    generator = torch.Generator().manual_seed(5)
    return FusionLoader(
        dataset, 4, shuffle=True, num_workers=workers, generator=generator, **arguments
    )


@pytest.mark.parametrize("taken", [0, 1, 4])
@pytest.mark.parametrize("resumed_workers", [0, 1, 3])
@pytest.mark.few(3)
def test_the_rest_of_a_compiled_epoch_is_identical(train_set, taken, resumed_workers):
    full = loader_of(train_set)
    list(full)
    expected = list(full)

    interrupted = loader_of(train_set)
    list(interrupted)
    iterator = iter(interrupted)
    for _ in range(taken):
        next(iterator)
    state = json.loads(json.dumps(interrupted.state_dict()))
    del iterator
    resumed = loader_of(train_set, resumed_workers)
    resumed.load_state_dict(state)
    assert same_batches(expected[taken:], resumed)


@pytest.mark.parametrize("dataset", [Random(), Words()], ids=["rows", "whole batches"])
def test_the_rest_of_other_datasets_is_identical(dataset):
    full = loader_of(dataset, seed=3)
    expected = list(full)
    interrupted = loader_of(dataset, seed=3)
    iterator = iter(interrupted)
    next(iterator), next(iterator)
    state = interrupted.state_dict()
    resumed = loader_of(dataset, seed=3)
    resumed.load_state_dict(state)
    assert same_batches(expected[2:], resumed)


class Bad(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 5:
            raise LookupError("bad")
        return torch.tensor(index)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, lambda samples: torch.stack(samples)])
def test_an_epoch_is_resumed_behind_a_mini_batch_that_was_an_error(collate, workers):
    def loader():
        return FusionLoader(Bad(), 4, num_workers=workers, collate_fn=collate, seed=3)

    failed = loader()
    iterator = iter(failed)
    next(iterator)
    with pytest.raises(LookupError):
        next(iterator)
    state = failed.state_dict()
    assert state["delivered"] == 2
    resumed = loader()
    resumed.load_state_dict(state)
    indices = [batch.tolist() for batch in resumed]
    assert indices == [batch.tolist() for batch in iterator]
    assert indices[0] == [8, 9, 10, 11]


def test_the_global_generator_is_resumed_and_left_alone():
    torch.manual_seed(9)
    expected = list(FusionLoader(Nested(), 4, shuffle=True, num_workers=2))
    torch.manual_seed(9)
    interrupted = FusionLoader(Nested(), 4, shuffle=True, num_workers=2)
    next(iter(interrupted))
    state = interrupted.state_dict()
    torch.manual_seed(1234)
    resumed = FusionLoader(Nested(), 4, shuffle=True, num_workers=2)
    resumed.load_state_dict(state)
    assert same_batches(expected[1:], resumed)


def test_after_a_finished_epoch_the_next_one_follows(train_set):
    full = loader_of(train_set, seed=8)
    list(full)
    second = list(full)
    saved = loader_of(train_set, seed=8)
    list(saved)
    resumed = loader_of(train_set, seed=8)
    resumed.load_state_dict(saved.state_dict())
    assert same_batches(second, resumed)


def test_the_state_is_small():
    loader = loader_of(Nested())
    iterator = iter(loader)
    next(iterator)
    assert len(json.dumps(loader.state_dict())) < 10_000


def test_a_state_of_another_loader_is_refused():
    state = loader_of(Nested()).state_dict()
    with pytest.raises(ValueError, match="dataset_size"):
        loader_of(Words()).load_state_dict(state)
    with pytest.raises(ValueError, match="batch_size"):
        FusionLoader(Nested(), 5).load_state_dict(state)
    with pytest.raises(ValueError, match="version"):
        loader_of(Nested()).load_state_dict({"epoch": 3})


class Logged(Dataset):
    """Records which samples are read."""

    def __init__(self, log):
        self.log = log

    def __len__(self):
        return 40

    def __getitem__(self, index):
        with self.log.open("a") as file:
            file.write(f"{index}\n")
        return torch.tensor(index)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, torch.stack], ids=["rows", "whole batches"])
def test_what_was_delivered_is_not_read_again(tmp_path, workers, collate):
    first = loader_of(Logged(tmp_path / "first"), collate_fn=collate)
    before = [next(batches).tolist() for batches in [iter(first)] for _ in range(4)]
    state = first.state_dict()
    first.close()
    log = tmp_path / "second"
    resumed = loader_of(Logged(log), workers, collate_fn=collate)
    resumed.load_state_dict(state)
    after = sum((batch.tolist() for batch in resumed), [])
    assert sorted(sum(before, []) + after) == list(range(40))
    assert sorted(map(int, log.read_text().split())) == sorted(after)


class Late(Dataset):
    """Its first sample waits for ``may_come``. Samples are strings, made as whole batches."""

    def __init__(self, may_come):
        self.may_come = may_come

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 0:
            self.may_come.wait()
        return str(index)


@pytest.mark.few(1)
@pytest.mark.parametrize("collate", [None, list])
def test_what_came_out_of_order_in_whole_batches_does_not_come_again(tmp_path, collate):
    dataset = Late(Flag(tmp_path / "may come"))

    def loader():
        return FusionLoader(dataset, 1, num_workers=2, in_order=False, collate_fn=collate)

    first = loader()
    iterator = iter(first)
    before = [next(iterator)[0] for _ in range(3)]
    state = first.state_dict()
    dataset.may_come.set()
    assert "0" not in before and state["delivered"] == 0
    del iterator
    second = loader()
    second.load_state_dict(state)
    after = [batch[0] for batch in second]
    assert sorted(before + after) == list("01234567")


class Plain(IterableDataset):
    def __iter__(self):
        return iter(range(8))


@pytest.mark.parametrize(("workers", "in_order"), [(2, False), (2, True), (1, False)])
def test_a_stream_without_a_state_that_resumes_out_of_order_warns(workers, in_order):
    loader = FusionLoader(Plain(), 2, num_workers=workers, in_order=in_order)
    next(iter(loader))
    state = loader.state_dict()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader.load_state_dict(state)
    told = [warning for warning in said if "may lack samples" in str(warning.message)]
    assert len(told) == (workers == 2 and not in_order)
    assert [warning.filename for warning in told] == [__file__] * len(told)


class Holding:
    """A batch sampler that holds another one, as Accelerate's."""

    def __init__(self, held):
        self.batch_sampler = held

    def __len__(self):
        return len(self.batch_sampler)

    def __iter__(self):
        return iter(self.batch_sampler)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_s_generator_is_found_inside_of_others(workers):
    def make():
        drawn = RandomSampler(range(40), generator=torch.Generator().manual_seed(0))
        batches = Holding(Holding(BatchSampler(drawn, 4, False)))
        return FusionLoader(range(40), num_workers=workers, batch_sampler=batches)

    loader = make()
    list(loader)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    again = make()
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in rest]


@pytest.mark.parametrize("ranks", ["same", "reshard"])
def test_a_state_sets_the_epoch_of_a_distributed_sampler(ranks):
    def make():
        sampler = DistributedSampler(range(52), num_replicas=1, rank=0, seed=3)
        return FusionLoader(range(52), 5, sampler=sampler, seed=11, num_workers=1)

    loader = make()
    loader.set_epoch(1)
    iterator = iter(loader)
    seen = [next(iterator).tolist() for _ in range(3)]
    again = make()
    again.load_state_dict(loader.state_dict(), ranks=ranks)
    seen += [batch.tolist() for batch in again]
    assert sorted(sum(seen, [])) == list(range(52))


@pytest.mark.parametrize("epoch", [-1, 1 << 64])
def test_an_epoch_has_a_number_of_64_bits(epoch):
    with pytest.raises(ValueError, match="epoch should be a number"):
        FusionLoader(range(4)).set_epoch(epoch)
    with pytest.raises(TypeError):
        FusionLoader(range(4)).set_epoch("3")
