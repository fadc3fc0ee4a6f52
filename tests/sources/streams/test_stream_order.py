"""The order of a stream: every sample once, whatever the ranks, and from wherever it is resumed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusionloader.data.sources.streams.order import EpochOrder, ShuffleShape
from fusionloader.data.sources.streams.sampler import StreamSampler

COUNTS = st.lists(st.integers(0, 700), min_size=1, max_size=6)
SHAPES = st.none() | st.builds(
    ShuffleShape, st.integers(1, 500), st.integers(1, 40), st.integers(1, 4)
)


def sampler_of(counts, shape, rank=0, ranks=1, **options):
    return StreamSampler(
        np.array(counts, np.int64), shape, num_replicas=ranks, rank=rank, **options
    )


@settings(max_examples=40, deadline=None)
@given(counts=COUNTS, shape=SHAPES, ranks=st.integers(1, 8), epoch=st.integers(0, 3))
def test_ranks_share_an_epoch_without_loss_or_repetition(counts, shape, ranks, epoch):
    shares = []
    for rank in range(ranks):
        sampler = sampler_of(counts, shape, rank, ranks)
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1])
    assert sorted(sum(shares, [])) == list(range(sum(counts)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(max_examples=30, deadline=None)
@given(counts=COUNTS, shape=SHAPES, ranks=st.integers(1, 8))
def test_with_drop_last_all_ranks_have_as_many(counts, shape, ranks):
    shares = [list(sampler_of(counts, shape, rank, ranks, drop_last=True)) for rank in range(ranks)]
    assert {len(share) for share in shares} == {sum(counts) // ranks}
    flat = sum(shares, [])
    assert len(set(flat)) == len(flat)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), counts=COUNTS, shape=SHAPES, ranks=st.integers(1, 4))
def test_a_rank_goes_on_where_its_state_was_saved(data, counts, shape, ranks):
    rank = data.draw(st.integers(0, ranks - 1))
    whole = list(sampler_of(counts, shape, rank, ranks))
    stop = data.draw(st.integers(0, len(whole)))
    first = sampler_of(counts, shape, rank, ranks)
    run = iter(first)
    begun = [next(run) for _ in range(stop)]
    again = sampler_of(counts, shape, rank, ranks)
    again.load_state_dict(first.state_dict())
    assert len(again) == len(whole) - stop
    assert begun + list(again) == whole
    assert list(again) == whole  # the pass after it is whole


@settings(max_examples=40, deadline=None)
@given(data=st.data(), counts=COUNTS, shape=SHAPES, epoch=st.integers(0, 2))
def test_other_numbers_of_ranks_deliver_what_is_left_each_sample_once(data, counts, shape, epoch):
    states, delivered = None, []
    for ranks in data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=5)):
        left = sum(counts) - len(delivered)
        samplers = []
        for rank in range(ranks):
            sampler = sampler_of(counts, shape, rank, ranks)
            sampler.set_epoch(epoch)
            if states is not None:
                sampler.load_state_dict(sampler.merge_states(states))
            samplers.append(sampler)
        assert sum(map(len, samplers)) == left
        states = []
        for sampler in samplers:
            run = iter(sampler)
            count = data.draw(st.integers(0, min(len(sampler), 300)))
            delivered += [next(run) for _ in range(count)]
            states.append(sampler.state_dict())
    last = sampler_of(counts, shape)
    last.load_state_dict(last.merge_states(states))
    delivered += list(last)
    assert sorted(delivered) == list(range(sum(counts)))


def test_the_order_is_a_function_of_seed_and_epoch_alone():
    shape = ShuffleShape(500, 16, 3)
    orders = {}
    for seed in (0, 1):
        for epoch in (0, 1):
            sampler = sampler_of([900, 30, 400, 0, 77], shape, seed=seed)
            sampler.set_epoch(epoch)
            orders[seed, epoch] = list(sampler)
            assert orders[seed, epoch] == list(sampler)
    assert len({tuple(order) for order in orders.values()}) == 4


def test_the_order_of_a_release_is_that_of_all_releases():
    sampler = sampler_of([40, 25, 60], ShuffleShape(16, 4, 2), seed=3)
    sampler.set_epoch(2)
    assert list(sampler)[:12] == EXPECTED


EXPECTED = [105, 107, 108, 66, 68, 67, 65, 43, 106, 115, 42, 58]


def test_neighbours_are_read_within_the_window():
    shape = ShuffleShape(1000, 32, 8)
    order = np.array(list(sampler_of([5000] * 20, shape)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    runs = place.reshape(-1, 8)  # 5000 is a multiple of 8, which divides the runs
    spread = runs.max(axis=1) - runs.min(axis=1)
    assert spread.max() <= 1000 + 32 + 100  # places at which as many are due, but for chance


def test_shards_are_mixed():
    order = np.array(list(sampler_of([5000] * 20, ShuffleShape(1000, 32, 8))))
    shards_of_a_batch = [len(set(batch // 5000)) for batch in order.reshape(-1, 250)[10:]]
    assert np.median(shards_of_a_batch) >= 6


def test_a_hundred_million_samples_cost_nothing_to_order():
    sampler = sampler_of([1_000_000] * 100, ShuffleShape(10_000, 32, 8))
    first = [sample for sample, _ in zip(sampler, range(1000), strict=False)]
    assert len(set(first)) == 1000
    sampler.load_state_dict({**sampler.state_dict(), "delivered": 77_000_000})
    assert len(sampler) == 23_000_000
    assert next(iter(sampler)) not in first


def test_an_order_hashes_evenly():
    order = EpochOrder(np.array([1 << 16]), 0, 0, ShuffleShape(1 << 10, 32, 8))
    found = np.bincount(order.displacements(np.arange(1 << 16)), minlength=1 << 10)
    assert len(found) == 1 << 10 and found.min() > 20 and found.max() < 120


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 1, "ranks": 2}, "the state is that of rank 1 of 2"),
        ({"order": {"samples": 9}}, "samples = 9, and this one has 65"),
    ],
)
def test_a_state_of_something_else_is_refused(change, message):
    sampler = sampler_of([40, 25], ShuffleShape(16, 4, 2))
    with pytest.raises(ValueError, match=message):
        sampler.load_state_dict({**sampler.state_dict(), **change})


def test_states_that_are_not_whole_are_refused():
    states = [sampler_of([40], None, rank, 3).state_dict() for rank in range(3)]
    sampler = sampler_of([40], None)
    with pytest.raises(ValueError, match=r"states of the ranks \[0, 2\] are given"):
        sampler.merge_states([states[0], states[2]])
    with pytest.raises(ValueError, match="differ in 'epoch'"):
        sampler.merge_states([states[0], states[1], {**states[2], "epoch": 4}])


def test_a_state_is_dropped_by_another_epoch_and_not_by_its_own():
    sampler = sampler_of([40], None)
    sampler.load_state_dict({**sampler.state_dict(), "delivered": 30, "epoch": 2})
    sampler.set_epoch(2)
    assert len(sampler) == 10
    sampler.set_epoch(3)
    assert len(sampler) == 40
