"""How many remote workers there should be."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fusionloader.scheduler.fleet_size import FleetSize, SharedFleetSize

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


@example([0, 5], [(1.0, 1.0, 1, 1e-308)] * 3)
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


# ---- several ranks ------------------------------------------------------------------------------


def train_ranks(fleet, demands, steps):
    """Ranks need so many workers each; the workers are divided as they are asked for."""
    for now in range(steps):
        for rank, demand in demands.items():
            there = fleet.wish
            fits = there / max(1, sum(demands.values()))
            wait_share = max(0.0, 1 - fits) if demand else 0.0
            busy = min(1.0, demand / there) if there else 0.0
            fleet.observe(rank, now, busy, wait_share, there, 1.0 if there else None)
    return fleet.wish


def fleet_of(ranks, *limits):
    fleet = SharedFleetSize()
    for rank in range(ranks):
        fleet.join(rank, FleetSize(*limits), 0.0)
    return fleet


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_ranks_get_the_sum_of_what_they_need(demands):
    fleet = fleet_of(len(demands), 1, 60)
    wish = train_ranks(fleet, dict(enumerate(demands)), 400)
    assert wish == sum(fleet.needs.values())
    assert wish >= sum(demands) * ENOUGH
    assert wish <= max(len(demands), 2 * sum(demands) + len(demands))


@given(limits, st.lists(st.tuples(st.integers(0, 2), *([shares] * 2), st.integers(0, 90))))
def test_each_rank_stays_within_its_limits(limits, reports):
    fleet = fleet_of(3, *limits)
    for now, (rank, busy, waits, there) in enumerate(reports):
        fleet.observe(rank, now, busy, waits, there, busy)
        assert all(limits[0] <= need <= limits[1] for need in fleet.needs.values())


def test_what_a_rank_no_longer_needs_goes_to_a_rank_that_uses_it():
    fleet = SharedFleetSize()
    fleet.join("idle", FleetSize(0, 8, wish=4), 0.0)
    fleet.join("busy", FleetSize(0, 8, wish=4), 0.0)
    fleet.observe("busy", 0.0, 0.9, 0.0, 8, 1.0)
    for _ in range(20):
        fleet.observe("idle", 0.0, 0.0, 0.0, 8, None)
    assert fleet.needs == {"idle": 0, "busy": 8}


def test_workers_of_a_rank_that_has_left_are_kept_as_far_as_others_use_them():
    fleet = SharedFleetSize()
    fleet.join("gone", FleetSize(0, 8, wish=4), 0.0)
    fleet.join("busy", FleetSize(0, 8, wish=2), 0.0)
    fleet.join("fixed", FleetSize(3, 3), 0.0)
    fleet.observe("busy", 0.0, 0.45, 0.0, 9, 1.0)
    fleet.leave("gone", 0.0)
    assert fleet.needs == {"busy": 6, "fixed": 3}
    fleet.leave("gone", 0.0)
    fleet.leave("busy", 0.0)
    assert fleet.wish == 3


def test_a_rank_that_waits_for_workers_that_others_keep_busy_needs_more():
    fleet = fleet_of(2, 2, 8)
    for _ in range(3):
        fleet.observe(0, 0.0, 1.0, 0.5, 4, 1.0)
        fleet.observe(1, 0.0, 1.0, 0.0, 4, 1.0)
    # Rank 0 has had half of the four workers, and needs as much again.
    assert fleet.needs == {0: 4, 1: 2}


def test_a_rank_that_pauses_uses_nothing():
    fleet = fleet_of(2, 2, 8)
    fleet.observe(1, 0.0, 1.0, 0.0, 4, 1.0)
    for now in (10.0, 10.5, 11.0):
        fleet.observe(0, now, 1.0, 0.5, 4, 1.0)
    assert fleet.needs == {0: 6, 1: 2}  # it has had all four


def test_a_rank_with_long_steps_does_not_pause():
    fleet = fleet_of(2, 2, 8)
    for now in (5.0, 10.0, 15.0, 20.0):
        fleet.observe(0, now, 0.4, 0.5, 4, 1.0)
        fleet.observe(1, now + 1.0, 0.4, 0.0, 4, 1.0)
    # The workers are busy, with the requests of both.
    assert fleet.needs[0] > 2 == fleet.needs[1]


def test_a_rank_with_a_fixed_number_counts_as_one_that_keeps_workers_busy():
    fleet = SharedFleetSize()
    fleet.join("fixed", FleetSize(4, 4), 0.0)
    fleet.join("range", FleetSize(1, 8), 0.0)
    for _ in range(3):
        fleet.observe("fixed", 0.0, 0.6, 0.0, 5, 1.0)
        fleet.observe("range", 0.0, 0.4, 0.5, 5, 1.0)
    assert fleet.needs == {"fixed": 4, "range": 3}
