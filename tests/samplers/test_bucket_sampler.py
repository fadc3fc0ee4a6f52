"""Batches of one bucket each: exactly once, within the budget, of similar samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.data.samplers import BucketSampler

lengths_of_samples = st.lists(st.integers(1, 60), min_size=1, max_size=120)


def batches_by_rank(make, ranks):
    """The batches of each rank's epoch."""
    return [list(make(num_replicas=ranks, rank=rank)) for rank in range(ranks)]


@given(
    lengths_of_samples,
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(1, 8)),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_index_comes_once_and_the_first_batches_again_to_make_ranks_equal(
    lengths, batch_size, buckets, ranks, epoch, shuffle
):
    def make(**its):
        sampler = BucketSampler(
            lengths, batch_size=batch_size, buckets=buckets, shuffle=shuffle, seed=5, **its
        )
        sampler.set_epoch(epoch)
        return sampler

    whole = list(make(num_replicas=1, rank=0))
    assert sorted(index for batch in whole for index in batch) == list(range(len(lengths)))
    shared = batches_by_rank(make, ranks)
    steps = -(-len(whole) // ranks)
    assert {len(batches) for batches in shared} == {steps, len(make(num_replicas=ranks, rank=0))}
    repeated = [whole[place % len(whole)] for place in range(steps * ranks)]
    assert sorted(batch for batches in shared for batch in batches) == sorted(repeated)


@given(lengths_of_samples, st.integers(1, 9), st.integers(1, 5))
def test_with_drop_last_all_batches_are_whole_and_none_comes_twice(lengths, batch_size, ranks):
    def make(**its):
        return BucketSampler(lengths, batch_size=batch_size, buckets=3, drop_last=True, **its)

    shared = batches_by_rank(make, ranks)
    taken = [index for batches in shared for batch in batches for index in batch]
    assert len(taken) == len(set(taken))
    assert {len(batches) for batches in shared} == {len(make(num_replicas=ranks, rank=0))}
    assert all(len(batch) == batch_size for batches in shared for batch in batches)
    whole = make(num_replicas=1, rank=0)
    assert len(shared[0]) == len(whole) // ranks


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=200),
    st.integers(1, 20_000),
    st.one_of(st.none(), st.integers(1, 6)),
    st.one_of(st.none(), st.integers(1, 6)),
)
def test_no_batch_costs_more_tokens_than_the_budget(lengths, budget, buckets, batch_size):
    sampler = BucketSampler(
        lengths, max_tokens=budget, buckets=buckets, batch_size=batch_size, oversized="alone"
    )
    taken = list(sampler)
    assert sorted(index for batch in taken for index in batch) == list(range(len(lengths)))
    for batch in taken:
        cost = max(lengths[index] for index in batch) * len(batch)
        assert cost <= budget or len(batch) == 1 and lengths[batch[0]] > budget
        assert batch_size is None or len(batch) <= batch_size


@given(
    st.lists(st.tuples(st.integers(1, 800), st.integers(1, 800)), min_size=1, max_size=150),
    st.integers(1, 2_000_000),
)
def test_no_batch_costs_more_pixels_than_the_budget(sizes, budget):
    taken = list(BucketSampler(sizes, max_pixels=budget, oversized="alone"))
    assert sorted(index for batch in taken for index in batch) == list(range(len(sizes)))
    for batch in taken:
        widths, heights = zip(*(sizes[index] for index in batch), strict=True)
        assert len(batch) == 1 or max(widths) * max(heights) * len(batch) <= budget


@given(lengths_of_samples, st.lists(st.integers(1, 60), min_size=0, max_size=5, unique=True))
def test_a_batch_has_samples_between_two_boundaries(lengths, boundaries):
    boundaries = sorted(boundaries)
    for batch in BucketSampler(lengths, batch_size=4, boundaries=boundaries):
        places = {int(np.searchsorted(boundaries, lengths[i], side="right")) for i in batch}
        assert len(places) == 1


def test_sizes_are_divided_by_width_by_height():
    sizes = [(100, 200), (200, 100), (50, 120), (300, 200), (20, 20)]
    taken = list(BucketSampler(sizes, batch_size=5, boundaries=[1.0], shuffle=False))
    assert taken == [[0, 2], [1, 3, 4]]


def test_lengths_in_a_bucket_differ_by_a_tenth_where_a_budget_makes_the_buckets():
    lengths = np.random.default_rng(0).integers(10, 3000, 5000)
    for batch in BucketSampler(lengths, max_tokens=16_384):
        found = lengths[batch]
        assert found.max() <= 1.1 * found.min() + 1e-6


def test_quantiles_make_buckets_of_about_as_many_samples():
    lengths = np.random.default_rng(0).lognormal(4, 1, 8000)
    sampler = BucketSampler(lengths, batch_size=8000, buckets=8, shuffle=False)
    assert [len(batch) for batch in sampler] == [1000] * 8


def test_quantiles_of_a_large_dataset_are_those_of_a_part_of_it():
    lengths = np.arange(3_000_000, dtype=np.int32)
    sampler = BucketSampler(lengths, batch_size=3_000_000, buckets=4, shuffle=False)
    sizes = [len(batch) for batch in sampler]
    assert len(sizes) == 4 and all(abs(size - 750_000) < 10_000 for size in sizes)


def test_an_epoch_is_a_function_of_seed_and_number():
    lengths = np.random.default_rng(0).integers(1, 100, 500)

    def epoch(seed, number):
        sampler = BucketSampler(lengths, batch_size=8, seed=seed)
        sampler.set_epoch(number)
        return list(sampler)

    assert epoch(0, 3) == epoch(0, 3)
    different = [epoch(0, 3), epoch(0, 4), epoch(1, 3), epoch(1, 4)]
    assert all(a != b for place, a in enumerate(different) for b in different[:place])


def test_a_shuffled_epoch_mixes_a_bucket_and_the_order_of_buckets():
    lengths = np.repeat([10, 20, 30, 40], 100)
    taken = list(BucketSampler(lengths, batch_size=10))
    assert sum(batch == sorted(batch) for batch in taken) < 3
    order = [int(lengths[batch[0]]) for batch in taken]
    assert order != sorted(order)


def test_many_samples_need_4_bytes_each_and_4_more_for_an_epoch():
    lengths = np.random.default_rng(0).integers(1, 500, 200_000, dtype=np.int16)
    sampler = BucketSampler(lengths, max_tokens=16_384)
    order = sampler.form(0)
    assert sampler._buckets.members.nbytes == order.indices.nbytes == 4 * len(lengths)


@pytest.mark.parametrize(
    "keys, arguments, told",
    [
        ([5, 9], {}, "batches need a limit: give batch_size, max_tokens or max_pixels"),
        ([5, 9], {"batch_size": 0}, "batch_size should be a whole number from 1 on, not 0"),
        ([5, 9], {"max_tokens": 8}, r"sample 1 \(9\) costs 9 tokens.*8: raise max_tokens.*alone"),
        ([[2, 5], [3, 3]], {"max_pixels": 9}, r"sample 0 \(\[2, 5\]\) costs 10 pixels.*max_pixels"),
        ([5, 9], {"max_pixels": 80}, "max_pixels needs sizes, an array of n x 2"),
        ([[5, 9]], {"max_tokens": 80}, "max_tokens needs lengths, one number per sample"),
        ([0.5, 9], {"max_tokens": 80}, "whole numbers, not an array of shape .2,. and type float"),
        ([5, 9], {"max_tokens": 9, "max_pixels": 9}, "give one of them"),
        ([5, 0], {"max_tokens": 9}, r"keys\[1\] is 0: lengths and sizes should be above 0"),
        ([5.0, np.nan], {"batch_size": 9}, r"keys\[1\] is nan.*finite"),
        (["a"], {"batch_size": 9}, "keys should be numbers, not of type"),
        ([], {"batch_size": 9}, "at least one sample, not an array of shape .0,."),
        ([[1, 2, 3]], {"batch_size": 9}, "not an array of shape .1, 3."),
        ([5], {"batch_size": 9, "boundaries": [3, 2]}, "boundaries should be .* ascend"),
        ([5], {"batch_size": 9, "boundaries": [3], "buckets": 2}, "boundaries or buckets, not"),
        ([5], {"batch_size": 9, "boundaries": range(70_000)}, "70001 buckets are 65536 or more"),
        ([5], {"batch_size": 9, "buckets": 0}, "buckets should be a whole number from 1 on"),
        ([5], {"batch_size": 9, "oversized": "drop"}, "oversized should be 'raise' or 'alone'"),
        ([5], {"batch_size": 9, "seed": -1}, "seed should be a whole number from 0 on"),
        ([5], {"batch_size": 9, "num_replicas": 2}, "give both or neither"),
        ([5], {"batch_size": 9, "num_replicas": 2, "rank": 2}, "rank should be from 0"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(keys, arguments, told):
    with pytest.raises(ValueError, match=told):
        BucketSampler(keys, **arguments)


def test_a_sampler_made_before_the_process_group_takes_the_launcher_s_rank(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    sampler = BucketSampler([1, 2], batch_size=1)
    assert (sampler.num_replicas, sampler.rank) == (4, 2)
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match=r"WORLD_SIZE is 4.*init_process_group\(\) before"):
        BucketSampler([1, 2], batch_size=1)
    assert len(BucketSampler([1, 2], batch_size=1, num_replicas=2, rank=0)) == 1


def test_it_says_how_batches_are_made():
    sampler = BucketSampler([5, 5, 5, 9, 40], max_tokens=20, oversized="alone")
    told = (
        "BucketSampler: 3 batches an epoch from 3 buckets, of 1 to 4 samples, at most 20 tokens "
        "with padding, samples above that alone: 1"
    )
    assert sampler.explain() == told
    assert len(list(sampler)) == 3
