"""How many remote workers there should be."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fusionloader.scheduler.fleet_size import FleetSize

shares = st.floats(0, 1)
limits = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted)
ENOUGH = 0.95  # training may wait for one part in twenty
loads = st.lists(st.tuples(shares, shares, st.integers(0, 40), st.none() | shares), max_size=200)


def training(size, demand, steps):
    """Hears from training that needs ``demand`` workers; each wish is fulfilled at once."""
    for _ in range(steps):
        there = size.wish
        busy = min(1.0, demand / there) if there else 0.0
        wait_share = max(0.0, 1 - there / demand) if demand else 0.0
        size.observe(busy, wait_share, there, 1.0 if there else None)
    return size.wish


@given(limits, loads)
def test_it_stays_within_the_limits(limits, loads):
    size = FleetSize(*limits)
    for load in loads:
        assert limits[0] <= size.observe(*load) <= limits[1]


@given(limits, st.integers(1, 60))
def test_it_grows_to_what_training_needs_and_not_to_twice_that(limits, demand):
    fewest, most = limits
    wish = training(FleetSize(*limits), demand, 200)
    assert wish >= min(demand * ENOUGH, most)
    assert wish <= max(fewest, 2 * demand)


@given(limits, st.integers(1, 60), st.integers(0, 30))
def test_it_shrinks_to_what_is_still_needed(limits, before, after):
    fewest, most = limits
    size = FleetSize(*limits)
    training(size, before, 200)
    wish = training(size, min(before, after), 400)
    needed = min(before, after)
    assert wish >= min(needed * ENOUGH, most)
    # At most one more than keeps all of them busy for three quarters of the time.
    assert wish <= max(fewest, needed / 0.75 + 1)


@given(limits, st.lists(st.tuples(shares, st.integers(1, 40)), max_size=100))
def test_idle_workers_are_not_joined_by_others(limits, loads):
    size = FleetSize(*limits)
    for busy, there in loads:
        before = size.wish
        assert size.observe(busy * 0.74, 1.0, there) <= before


@given(st.integers(1, 20), st.integers(2, 40))
def test_no_more_are_asked_for_before_the_last_ones_are_there(fewest, steps):
    size = FleetSize(fewest, 100)
    while size.wish == fewest:
        size.observe(1.0, 1.0, fewest)
    wish = size.wish
    for _ in range(steps):
        assert size.observe(1.0, 1.0, wish - 1) == wish


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_what_is_missing_is_asked_for_at_once(there, here, more):
    """Local workers are worth ``here`` remote ones, and training needs ``more`` than it has."""
    assume(more / (there + here + more) > 1 - ENOUGH)
    size = FleetSize(there, 100)
    wait_share = more / (there + here + more)
    for _ in range(3):
        size.observe(1.0, wait_share, there, there / (there + here))
    assert there + more <= size.wish <= there + more + 1


def test_a_short_wait_changes_nothing():
    size = FleetSize(2, 8)
    for _ in range(10):
        size.observe(1.0, 1.0, 2)
        size.observe(1.0, 0.0, 2)
    assert size.wish == 2


def test_none_at_all_become_one_when_training_waits():
    size = FleetSize(0, 8)
    for _ in range(3):
        size.observe(0.0, 1.0, 0)
    assert size.wish == 1


@pytest.mark.parametrize("limits", [(-1, 3), (4, 3)])
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(ValueError, match="at least"):
        FleetSize(*limits)
