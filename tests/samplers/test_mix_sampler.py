"""Batches from several sources: proportions, ends of epochs, draws."""

from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.datasets import Numbers
from torch.utils.data import BatchSampler, ConcatDataset, RandomSampler

from fusionloader.data.samplers import MixSampler

mixes = st.lists(st.tuples(st.integers(1, 40), st.floats(0.02, 1.0)), min_size=1, max_size=6).map(
    lambda pairs: tuple(zip(*pairs, strict=True))
)
stops = st.sampled_from(["first_exhausted", "all_exhausted", 1, 7, 150])
orders = st.sampled_from(["even", "random"])


def sources_of(batches, lengths):
    """The source of each sample, in order, and each sample's number within it."""
    indices = np.array([index for batch in batches for index in batch], int)
    offsets = np.array([0, *accumulate(lengths)])
    source = np.searchsorted(offsets, indices, side="right") - 1
    return source, indices - offsets[source]


@given(mixes, st.integers(1, 9), stops)
def test_after_any_number_of_samples_sources_had_their_shares(mix, batch_size, stop):
    lengths, weights = mix
    sampler = MixSampler(lengths, weights, batch_size=batch_size, stop=stop)
    source, _ = sources_of(sampler, lengths)
    shares = np.array(weights) / sum(weights)
    taken = np.cumsum(source[:, None] == np.arange(len(lengths)), axis=0)
    due = np.arange(1, len(source) + 1)[:, None] * shares
    assert (np.abs(taken - due) <= (1 + len(lengths) * shares) / 2 + 1e-6).all()


@given(mixes, stops, orders, st.integers(0, 3))
def test_sources_have_as_many_samples_in_each_epoch_and_order(mix, stop, order, epoch):
    lengths, weights = mix
    sampler = MixSampler(lengths, weights, batch_size=4, stop=stop, order=order)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert [len(batch) for batch in batches[:-1]] == [4] * (len(sampler) - 1)
    source, _ = sources_of(batches, lengths)
    found = np.bincount(source, minlength=len(lengths)).tolist()
    assert found == list(sampler.samples_per_epoch.values())


@given(mixes, orders, st.sampled_from(["sample", "batch"]))
def test_until_the_first_is_exhausted_no_sample_comes_twice_and_one_source_is_whole(
    mix, order, per
):
    lengths, weights = mix
    lengths = [length + 3 for length in lengths]
    sampler = MixSampler(lengths, weights, batch_size=4, order=order, per=per)
    source, sample = sources_of(sampler, lengths)
    found = list(zip(source, sample, strict=True))
    assert len(found) == len(set(found))
    counts = np.bincount(source, minlength=len(lengths))
    unit = 4 if per == "batch" else 1
    ended = [count + unit > length for count, length in zip(counts, lengths, strict=True)]
    assert any(ended)


@given(mixes, orders, st.booleans())
def test_until_all_are_exhausted_all_samples_come_and_repeats_are_whole_passes(mix, order, shuffle):
    lengths, weights = mix
    sampler = MixSampler(
        lengths, weights, batch_size=5, stop="all_exhausted", order=order, shuffle=shuffle
    )
    source, sample = sources_of(sampler, lengths)
    exact = 0
    for place, length in enumerate(lengths):
        drawn = sample[source == place].tolist()
        assert len(drawn) >= length
        exact += len(drawn) == length
        for start in range(0, len(drawn), length):
            one_pass = drawn[start : start + length]
            assert len(set(one_pass)) == len(one_pass)
            assert shuffle or one_pass == list(range(len(one_pass)))
    assert exact >= 1


@given(mixes, st.integers(1, 300), st.integers(1, 6), st.booleans())
def test_a_number_of_samples_is_an_epoch_over_all_ranks(mix, total, ranks, drop_last):
    lengths, weights = mix
    arguments = {"batch_size": 4, "stop": total, "drop_last": drop_last}
    whole = list(MixSampler(lengths, weights, **arguments, num_replicas=1, rank=0))
    assert sum(map(len, whole)) == (total - total % 4 if drop_last else total)
    samplers = [
        MixSampler(lengths, weights, **arguments, num_replicas=ranks, rank=rank)
        for rank in range(ranks)
    ]
    shared = [list(sampler) for sampler in samplers]
    assert {len(batches) for batches in shared} == {len(samplers[0])}
    taken = [batch for step in zip(*shared, strict=True) for batch in step]
    if drop_last:
        expected = whole[: len(whole) // ranks * ranks]
    else:
        steps = -(-len(whole) // ranks)
        expected = [whole[place % len(whole)] for place in range(steps * ranks)]
    assert sorted(taken) == sorted(expected)


def test_passes_over_an_exhausted_source_are_in_fresh_orders():
    for length in (100, 5000):  # shuffled many at once, and one by one
        sampler = MixSampler([length, 4 * length], [1, 1], batch_size=50, stop="all_exhausted")
        source, sample = sources_of(sampler, [length, 4 * length])
        passes = sample[source == 0].reshape(4, length).tolist()
        assert all(sorted(one_pass) == list(range(length)) for one_pass in passes)
        assert len({tuple(one_pass) for one_pass in passes}) == 4


def test_few_samples_of_a_long_source_are_distinct_and_from_all_of_it():
    length = 1_000_000
    sampler = MixSampler([length], [1], batch_size=100, stop=10_000)
    _, sample = sources_of(sampler, [length])
    assert len(set(sample.tolist())) == 10_000
    assert np.histogram(sample, 10, (0, length))[0].min() > 800


def test_with_replacement_samples_come_as_often_as_chance_has_it():
    sampler = MixSampler(
        {"few": 10, "many": 1000},
        {"few": 1, "many": 1},
        batch_size=20,
        stop=2000,
        replacement={"few": True, "many": False},
    )
    source, sample = sources_of(sampler, [10, 1000])
    few, many = Counter(sample[source == 0].tolist()), Counter(sample[source == 1].tolist())
    assert 50 < min(few.values()) < max(few.values()) < 150  # 100 each on average
    assert set(many.values()) == {1}


def test_a_batch_is_of_one_source_where_batches_are_mixed():
    sampler = MixSampler([300, 300, 300], [3, 2, 1], batch_size=10, per="batch", stop=600)
    batches = list(sampler)
    assert len(batches) == 60
    sources = [set(sources_of([batch], [300] * 3)[0].tolist()) for batch in batches]
    assert all(len(each) == 1 for each in sources)
    assert Counter(each.pop() for each in sources) == {0: 30, 1: 20, 2: 10}


def test_a_rank_meets_all_sources_of_an_order_that_repeats_with_the_ranks():
    for rank in range(2):
        sampler = MixSampler(
            [200, 200], [1, 1], batch_size=10, per="batch", num_replicas=2, rank=rank
        )
        source, _ = sources_of(sampler, [200, 200])
        assert np.bincount(source).tolist() == [100, 100]


def test_indices_are_those_of_a_concatenated_dataset():
    parts = {"a": Numbers(7), "b": Numbers(5), "c": Numbers(9)}
    together = ConcatDataset(parts.values())
    sampler = MixSampler(parts, {"c": 1, "b": 1, "a": 1}, batch_size=3, stop="all_exhausted")
    source, sample = sources_of(sampler, [7, 5, 9])
    found = [int(together[index]) for batch in sampler.form(0).indices[None] for index in batch]
    assert found == sample.tolist()
    assert set(source) == {0, 1, 2}


def test_random_order_has_batches_of_other_proportions_and_even_order_has_not():
    def firsts(order):
        sampler = MixSampler([5000, 5000], [1, 1], batch_size=50, order=order)
        return {sum(index < 5000 for index in batch) for batch in sampler}

    assert firsts("even") == {25}
    assert len(firsts("random")) > 5


def test_an_epoch_is_a_function_of_seed_and_number():
    def epoch(seed, number):
        sampler = MixSampler([90, 60], [1, 2], batch_size=7, seed=seed, order="random")
        sampler.set_epoch(number)
        return list(sampler)

    assert epoch(0, 2) == epoch(0, 2)
    assert epoch(0, 2) != epoch(0, 3) != epoch(1, 3) != epoch(0, 2)


@pytest.mark.parametrize(
    "arguments, kind, told",
    [
        ({"weights": [1]}, ValueError, "2 sources have 1 weights: give one for each"),
        ({"weights": {"a": 1}}, ValueError, "weights should be a sequence, as the sources are"),
        ({"weights": [1, 0]}, ValueError, "the weight of source 1 is 0.0.*leave a source out"),
        ({"weights": [1, np.inf]}, ValueError, "the weight of source 1 is inf"),
        ({"sources": [], "weights": []}, ValueError, "needs sources, and there are none"),
        ({"sources": [4, 0]}, ValueError, "source 1 has 0 samples: leave it out"),
        ({"sources": [4, None]}, TypeError, "source 1 should be a dataset with a length"),
        (
            {"sources": {"a": 4}, "weights": {"b": 1}},
            ValueError,
            r"weights are for \['b'\], and the sources are \['a'\]",
        ),
        (
            {"sources": [4, RandomSampler(range(9))]},
            TypeError,
            "source 1 is a sampler .RandomSampler.*give its dataset",
        ),
        ({"batch_size": 0}, ValueError, "batch_size should be a whole number from 1 on"),
        ({"per": "rank"}, ValueError, "per should be 'sample' or 'batch', not 'rank'"),
        ({"order": "odd"}, ValueError, "order should be 'even' or 'random', not 'odd'"),
        ({"stop": "never"}, ValueError, "stop should be 'first_exhausted'.*not 'never'"),
        ({"stop": 0}, ValueError, "stop should be .* a number of samples from 1 on, not 0"),
        (
            {"per": "batch", "batch_size": 6},
            ValueError,
            'source 0 has 5 samples, less than a batch of 6: .*per="sample"',
        ),
        ({"replacement": [True]}, ValueError, "2 sources have 1 replacement"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(arguments, kind, told):
    with pytest.raises(kind, match=told):
        MixSampler(**{"sources": [5, 9], "weights": [1, 1], "batch_size": 2, **arguments})


def test_it_says_what_each_source_gives():
    sampler = MixSampler({"a": 100, "b": 10}, {"a": 3, "b": 1}, batch_size=20, stop=80)
    told = "MixSampler: 4 batches an epoch: a 75.0% (0.60 times), b 25.0% (2.00 times)"
    assert sampler.explain() == told


def test_torch_would_take_its_batches_for_those_of_a_batch_sampler_of_its_own():
    sampler = MixSampler([8], [1], batch_size=3, shuffle=False)
    assert list(sampler) == list(BatchSampler(range(8), 3, drop_last=False))
