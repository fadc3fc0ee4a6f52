"""States of batch samplers: any place of an epoch, any number of ranks, several loaders."""

import copy
import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.datasets import Numbers
from torch.utils.data import DataLoader

from fusionloader import FusionLoader
from fusionloader.data.samplers import BucketSampler, MixSampler
from fusionloader.data.sources.streams.order import ShuffleShape
from fusionloader.data.sources.streams.sampler import StreamSampler

LENGTHS = np.random.default_rng(0).integers(1, 50, 41)


def bucket_sampler(**its):
    return BucketSampler(LENGTHS, **{"batch_size": 3, "buckets": 4, "seed": 2, **its})


def mix_sampler(**its):
    return MixSampler(
        [17, 24], [2, 1], **{"batch_size": 3, "stop": "all_exhausted", "order": "random", **its}
    )


SAMPLERS = {"buckets": bucket_sampler, "mix": mix_sampler}
both = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


def taken_by(sampler, count):
    """The first batches of a pass, which stays at that position."""
    return list(itertools.islice(sampler, count))


def saved(sampler, **its):
    return json.loads(json.dumps(sampler.state_dict(**its)))


@both
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_pass_goes_on_at_every_place_and_so_do_the_epochs_after_it(make, ranks):
    its = {"num_replicas": ranks, "rank": ranks - 1}
    uninterrupted = make(**its)
    uninterrupted.set_epoch(4)
    epoch, following = list(uninterrupted), list(uninterrupted)
    assert epoch != following
    for place in range(len(epoch) + 1):
        begun = make(**its)
        begun.set_epoch(4)
        assert taken_by(begun, place) == epoch[:place]
        if place == 0:
            begun.state_dict()
        resumed = make(**its)
        resumed.load_state_dict(saved(begun))
        assert list(resumed) == epoch[place:]
        assert list(resumed) == following


@both
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4))
def test_any_number_of_ranks_goes_on_and_every_batch_comes_once(make, stages):
    whole = list(make(num_replicas=1, rank=0))
    state, taken = None, []
    for ranks, steps in [*stages, (2, len(whole))]:
        samplers = [make(num_replicas=ranks, rank=rank) for rank in range(ranks)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        shared = [taken_by(sampler, steps) for sampler in samplers]
        assert len({len(batches) for batches in shared}) == 1
        taken += [batch for step in zip(*shared, strict=True) for batch in step]
        states = [saved(sampler) for sampler in samplers]
        state = samplers[0].merge_states(states)
        assert all(each == state for each in states)
    found, expected = (Counter(map(tuple, batches)) for batches in (taken, whole))
    assert expected <= found
    assert (found - expected).total() < max(2, *(ranks for ranks, _ in stages))
    assert found.keys() == expected.keys()


@both
def test_with_drop_last_other_ranks_go_on_and_no_batch_comes_twice(make):
    begun = [make(num_replicas=3, rank=rank, drop_last=True) for rank in range(3)]
    taken = [batch for sampler in begun for batch in taken_by(sampler, 2)]
    state = saved(begun[1])
    for rank in range(2):
        resumed = make(num_replicas=2, rank=rank, drop_last=True)
        resumed.load_state_dict(state)
        taken += list(resumed)
    whole = list(make(drop_last=True))
    assert len(taken) == 6 + (len(whole) - 6) // 2 * 2
    assert len({tuple(batch) for batch in taken}) == len(taken)


@both
def test_ranks_that_stand_at_different_batches_are_not_merged(make):
    samplers = [make(num_replicas=2, rank=rank) for rank in range(2)]
    states = [
        (taken_by(sampler, 1 + place), saved(sampler))[1] for place, sampler in enumerate(samplers)
    ]
    with pytest.raises(ValueError, match="save the states of all ranks at the same step"):
        make().merge_states(states)


@both
def test_passes_are_the_epochs_one_after_the_other_unless_one_is_set(make):
    sampler, other = make(), make()
    passes = [list(sampler) for _ in range(3)]
    for epoch in (1, 2, 0):
        other.set_epoch(epoch)
        assert list(other) == passes[epoch]
    assert len({str(each) for each in passes}) == 3
    taken_by(other, 2)  # broken off
    assert list(other) == passes[2]


def stream_sampler():
    return StreamSampler(
        np.full(6, 7, np.int64), ShuffleShape(9, 2, 3), seed=3, num_replicas=1, rank=0
    )


all_kinds = pytest.mark.parametrize(
    "make", [*SAMPLERS.values(), stream_sampler], ids=[*SAMPLERS, "stream"]
)


def epoch_of(make, epoch):
    sampler = make()
    sampler.set_epoch(epoch)
    return list(sampler)


@all_kinds
def test_an_epoch_that_is_set_during_a_pass_is_that_of_the_next_one(make):
    sampler = make()
    for epoch in (0, 2, 5):
        found, states = [], []
        for batch in sampler:
            found.append(batch)
            sampler.set_epoch({0: 2, 2: 5, 5: 9}[epoch])
            states.append(saved(sampler))
        assert found == epoch_of(make, epoch)
        for place, state in enumerate(states, 1):
            resumed = make()
            resumed.load_state_dict(state)
            assert found[:place] + list(resumed) == found
    taken_by(sampler, 3)  # of epoch 9
    sampler.set_epoch(4)
    resumed = make()
    resumed.load_state_dict(saved(sampler))
    assert list(resumed) == list(sampler) == epoch_of(make, 4)


@all_kinds
@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_is_set_after_a_finished_one_was_loaded_is_the_next(make, workers):
    def loader():
        sampler = make()
        its = {"sampler": sampler} if make is stream_sampler else {"batch_sampler": sampler}
        return FusionLoader(Numbers(42), num_workers=workers, **its)

    first = loader()
    first.set_epoch(1)
    list(first)
    expected = [torch.as_tensor(each).reshape(-1).tolist() for each in epoch_of(make, 6)]
    for name in ("the loader", "batch_sampler", "sampler"):
        resumed = loader()
        resumed.load_state_dict(first.state_dict())
        by = getattr(resumed, name, resumed)
        if hasattr(by, "set_epoch"):
            by.set_epoch(6)
            assert [batch.reshape(-1).tolist() for batch in resumed] == expected, name


@both
def test_an_unused_iterator_begins_no_pass(make):
    sampler = make()
    state = saved(sampler)
    iter(sampler)
    assert saved(sampler) == state
    assert list(sampler) == list(make())


@both
def test_setting_the_epoch_of_a_state_keeps_its_place_and_another_one_does_not(make):
    begun = make()
    begun.set_epoch(3)
    epoch = list(begun)
    begun.set_epoch(3)
    taken_by(begun, 4)
    resumed = make()
    resumed.load_state_dict(saved(begun))
    resumed.set_epoch(3)
    assert list(resumed) == epoch[4:]
    resumed.load_state_dict(saved(begun))
    resumed.set_epoch(5)
    assert len(list(resumed)) == len(epoch)


@both
@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader_goes_on_after_what_training_had(make, workers):
    sampler = make()
    loader = DataLoader(Numbers(41), batch_sampler=sampler, num_workers=workers)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = saved(sampler, delivered=5)
    expected = [batch.tolist() for batch in iterator]
    resumed = make()
    resumed.load_state_dict(state)
    again = DataLoader(Numbers(41), batch_sampler=resumed, num_workers=workers)
    assert len(again) == 5 + len(expected)
    assert [batch.tolist() for batch in again] == expected
    with pytest.raises(ValueError, match="delivered=99, and the pass has yielded"):
        sampler.state_dict(delivered=99)


@both
@pytest.mark.few(4)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 5])
def test_torchdatas_loader_goes_on_where_it_was(make, workers, taken):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    loader = stateful(Numbers(41), batch_sampler=make(), num_workers=workers)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in iterator]
    again = stateful(Numbers(41), batch_sampler=make(), num_workers=workers)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected


@both
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_stands_where_the_sampler_does(make, copied):
    sampler = make()
    taken_by(sampler, 2)
    again = copied(sampler)
    assert saved(again) == saved(sampler)
    state = saved(again)
    again.load_state_dict(state)
    assert list(again) == list(make())[2:]


@pytest.mark.parametrize(
    "change, told",
    [
        ({"seed": 3}, "seed = 2, and this one has 3"),
        ({"shuffle": False}, "shuffle = True, and this one has False"),
        ({"batch_size": 4}, "with (batches|batch_size) = "),
        ({"buckets": 2}, "with (batches|buckets) = "),
        ({"drop_last": True}, "with (batches|drop_last) = "),
    ],
)
def test_a_state_of_another_sampler_is_refused_by_name(change, told):
    begun = bucket_sampler()
    taken_by(begun, 2)
    with pytest.raises(ValueError, match=told):
        bucket_sampler(**change).load_state_dict(saved(begun))


def test_a_state_is_refused_where_the_lengths_have_changed():
    begun = bucket_sampler()
    taken_by(begun, 2)
    lengths = LENGTHS.copy()
    lengths[[np.argmin(lengths), np.argmax(lengths)]] = lengths.max(), lengths.min()
    changed = BucketSampler(lengths, batch_size=3, buckets=4, seed=2)
    changed.load_state_dict(saved(begun))
    with pytest.raises(ValueError, match="its order is not that in which it was begun"):
        next(iter(changed))


def test_what_is_no_state_is_refused():
    sampler = bucket_sampler()
    state = saved(sampler)
    for wrong, told in [
        ({**state, "version": 0}, "expected version 1, found 0"),
        ([], "found 'list'"),
        (mix_sampler().state_dict(), "with .* = "),
    ]:
        with pytest.raises(ValueError, match=told):
            sampler.load_state_dict(wrong)
    for name in state.keys() - {"version"}:
        damaged = {other: value for other, value in state.items() if other != name}
        with pytest.raises(ValueError, match=f"lacks {name}"):
            sampler.load_state_dict(damaged)
    with pytest.raises(ValueError, match="epoch should be a whole number from 0 on, not -1"):
        sampler.set_epoch(-1)
