"""The size of a group: as large as it pays, and small enough that training does not wait."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusionloader.scheduler.group_size import GroupSize

TINY = 4


def work(
    groups, mini_batches, *, launch, sample, makespan, tiny_batches=64, noise=0.0, seed=0, **given
):
    """The GPU worker takes all tiny-batches of some mini-batches; samples shrink towards the end.

    Times in milliseconds; returns the sizes.
    """
    source = random.Random(seed)
    sizes = []
    for _ in range(mini_batches):
        left = tiny_batches
        while left:
            taken = min(groups.size, left)
            grown = sum(0.5 + (left - i) / tiny_batches for i in range(taken)) / taken
            seconds = launch + taken * TINY * sample * grown * source.lognormvariate(0, noise)
            groups.launched(taken * TINY, seconds)
            left -= taken
        groups.finished(makespan, **given)
        sizes.append(groups.size)
    return sizes


def test_it_grows_while_the_launch_costs_more_than_the_samples():
    sizes = work(GroupSize(), 60, launch=2.0, sample=0.1, makespan=200.0)
    assert sizes[0] == 1
    assert sizes[-1] == 32
    assert all(
        after in (before, 2 * before) for before, after in zip(sizes, sizes[1:], strict=False)
    )


def test_it_stays_at_one_tiny_batch_when_a_launch_costs_nothing():
    sizes = work(GroupSize(), 100, launch=0.0, sample=0.1, makespan=200.0)
    assert set(sizes) == {1, 2}
    assert sizes.count(1) > 75  # the others are trials


@pytest.mark.parametrize("most", [2.5, 10.0, 30.0])
@pytest.mark.parametrize(("beside", "share"), [(False, 0.25), (True, 1.0)])
def test_a_launch_takes_at_most_a_share_of_the_mini_batch_s_time(most, beside, share):
    costs = {"launch": 1.0, "sample": 0.2, "makespan": most / share}
    size = work(GroupSize(), 80, **costs, beside=beside)[-1]
    assert 1.0 + size * TINY * 0.2 * 1.5 <= most
    assert 1.0 + 4 * size * TINY * 0.2 * 1.5 > most  # and it is not needlessly small


def test_it_shrinks_when_mini_batches_become_shorter():
    groups = GroupSize()
    assert work(groups, 80, launch=2.0, sample=0.1, makespan=200.0)[-1] == 32
    assert work(groups, 80, launch=2.0, sample=0.1, makespan=20.0)[-1] == 4


def test_what_was_measured_in_another_mode_is_not_compared():
    groups = GroupSize()
    for beside in (False, True) * 10:
        work(groups, 2, launch=2.0, sample=0.1, makespan=200.0, beside=beside)
    assert groups.size == 1  # no mode lasted for as many as it takes
    assert work(groups, 80, launch=2.0, sample=0.1, makespan=20.0, beside=True)[-1] == 16
    assert work(groups, 80, launch=2.0, sample=0.1, makespan=20.0)[-1] == 4


def test_mini_batches_without_gpu_work_tell_nothing():
    groups = GroupSize()
    for _ in range(50):
        groups.finished(100.0)
    assert groups.size == 1
    assert work(groups, 60, launch=2.0, sample=0.1, makespan=200.0)[-1] == 32


@settings(deadline=None, max_examples=50)
@given(
    launch=st.floats(0.0, 20.0),
    sample=st.floats(0.01, 1.0),
    makespan=st.floats(1.0, 500.0),
    noise=st.floats(0.0, 0.5),
    seed=st.integers(0, 1000),
)
def test_it_stays_within_its_bounds(launch, sample, makespan, noise, seed):
    groups = GroupSize(largest=8)
    costs = {"launch": launch, "sample": sample, "makespan": makespan}
    assert set(work(groups, 60, noise=noise, seed=seed, **costs)) <= {1, 2, 4, 8}
