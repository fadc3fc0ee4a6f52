"""Device memory that training lends: which blocks, for how long, and what fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import MIB, block, segment

from fusionloader.scheduler.memory_lending import (
    MemoryClaim,
    MemoryPeaks,
    Patience,
    candidates,
    only_expandable,
    plan_claims,
)


def test_the_largest_blocks_come_first_up_to_the_limit():
    snapshot = [
        segment(0x1000_0000, [block(20 * MIB), block(44 * MIB, "active_allocated")]),
        segment(0x2000_0000, [block(30 * MIB, "active_allocated"), block(50 * MIB)]),
        segment(0x3000_0000, [block(40 * MIB)]),
    ]
    sizes = [claim.size for claim in plan_claims(snapshot, 100 * MIB)]
    assert sizes == [50 * MIB, 40 * MIB]
    assert plan_claims(snapshot, 100 * MIB)[0] == MemoryClaim(
        0x2000_0000 + 30 * MIB, 50 * MIB, stream=0, whole_segment=False
    )


def test_a_block_beyond_the_limit_is_passed_over_for_smaller_ones():
    snapshot = [segment(0, [block(64 * MIB)]), segment(1 << 30, [block(20 * MIB)])]
    assert [claim.size for claim in plan_claims(snapshot, 63 * MIB)] == [20 * MIB]


def test_a_whole_segment_is_preferred_to_a_part_of_the_same_size():
    part = segment(0, [block(20 * MIB, "active_allocated"), block(20 * MIB)])
    whole = segment(1 << 30, [block(20 * MIB)])
    assert plan_claims([part, whole], 20 * MIB) == [MemoryClaim(1 << 30, 20 * MIB, 0, True)]


@pytest.mark.parametrize("state", ["active_allocated", "active_pending_free"])
def test_what_a_tensor_or_another_stream_still_uses_is_not_lent(state):
    assert plan_claims([segment(0, [block(64 * MIB, state)])], 1 << 40) == []


def test_memory_of_graphs_and_other_pools_is_not_lent():
    assert plan_claims([segment(0, [block(64 * MIB)], pool=(0, 1))], 1 << 40) == []
    assert plan_claims([segment(0, [block(64 * MIB)], pool=(3, 0))], 1 << 40) == []


def test_expandable_segments_are_not_lent_and_named_as_the_reason():
    expandable = segment(0, [block(64 * MIB)], expandable=True)
    usual = segment(1 << 30, [block(64 * MIB)])
    assert plan_claims([expandable], 1 << 40) == []
    assert only_expandable([expandable])
    assert not only_expandable([expandable, usual])
    assert not only_expandable([])


def test_a_snapshot_that_does_not_say_what_a_segment_is_gives_nothing():
    for key in ("segment_pool_id", "is_expandable"):
        unknown = segment(0, [block(64 * MIB)])
        del unknown[key]
        assert candidates([unknown]) == []


def test_other_devices_and_small_blocks_are_left_out():
    snapshot = [
        segment(0, [block(64 * MIB)], device=1),
        segment(1 << 30, [block(3 * MIB), block(5 * MIB)]),
    ]
    assert [claim.size for claim in plan_claims(snapshot, 1 << 40)] == [5 * MIB]
    assert [claim.size for claim in plan_claims(snapshot, 1 << 40, device=1)] == [64 * MIB]
    assert plan_claims(snapshot, 1 << 40, smallest=6 * MIB) == []


def test_blocks_that_could_not_be_claimed_by_size_are_refused():
    with pytest.raises(ValueError, match="claimed by their size"):
        plan_claims([], 1 << 40, smallest=1 << 20)


def test_addresses_follow_from_sizes_where_blocks_do_not_say_them():
    parts = [block(2 * MIB, "active_allocated"), block(6 * MIB)]
    for part in parts:
        part.pop("address", None)
    (claim,) = candidates([segment(0x7000_0000, parts, addresses=False)])
    assert claim.address == 0x7000_0000 + 2 * MIB


STATES = st.sampled_from(["active_allocated", "active_pending_free", "inactive", "inactive"])
BLOCKS = st.builds(block, st.integers(1, 80).map(lambda n: n * MIB), STATES)
POOLS = st.sampled_from([(0, 0), (0, 0), (0, 1), (2, 0)])


@st.composite
def snapshots(draw):
    """Segments that do not overlap, of two devices and some streams and pools."""
    return [
        segment(
            (number + 1) << 36,
            draw(st.lists(BLOCKS, min_size=1, max_size=5)),
            device=draw(st.integers(0, 1)),
            stream=draw(st.sampled_from([0, 0x55AA_0000])),
            pool=draw(POOLS),
            expandable=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 6)))
    ]


@given(snapshots(), st.integers(0, 500).map(lambda n: n * MIB))
def test_a_plan_is_within_the_limit_and_of_free_blocks_of_the_default_pool(snapshot, limit):
    claims = plan_claims(snapshot, limit)
    assert sum(claim.size for claim in claims) <= limit
    assert len({claim.address for claim in claims}) == len(claims)
    assert [claim.size for claim in claims] == sorted((c.size for c in claims), reverse=True)
    for claim in claims:
        (home,) = [s for s in snapshot if 0 <= claim.address - s["address"] < s["total_size"]]
        (free,) = [b for b in home["blocks"] if b["address"] == claim.address]
        assert (free["state"], free["size"]) == ("inactive", claim.size)
        assert home["segment_pool_id"] == (0, 0) and not home["is_expandable"]
        assert (home["device"], home["stream"]) == (0, claim.stream)
        assert claim.whole_segment == (len(home["blocks"]) == 1)


@given(snapshots(), st.integers(0, 500).map(lambda n: n * MIB))
def test_what_a_plan_leaves_out_does_not_fit_into_what_is_left(snapshot, limit):
    claims = plan_claims(snapshot, limit)
    left = limit - sum(claim.size for claim in claims)
    others = [claim for claim in candidates(snapshot) if claim not in claims]
    assert all(claim.size > left for claim in others)


def test_each_kill_doubles_it_until_it_is_eight_times_as_long():
    patience, kills = Patience(0.03), 1
    while patience.overdue():
        kills += 1
    assert kills == 4
    assert patience.seconds == pytest.approx(0.24)


def test_a_slow_return_makes_room_for_one_twice_as_slow():
    patience = Patience(0.03)
    patience.returned(0.01)
    assert patience.seconds == 0.03
    patience.returned(0.028)
    assert patience.seconds == pytest.approx(0.056)


@given(st.lists(st.floats(0.0, 10.0)))
def test_it_never_shrinks_and_stays_within_its_bound(returns):
    patience = Patience(0.03)
    for seconds in returns:
        before = patience.seconds
        patience.returned(seconds)
        assert before <= patience.seconds <= 0.24


def test_peaks_fit_up_to_the_last_byte():
    peaks = MemoryPeaks()
    peaks.observe(free=500, total=1000, reserved=300)
    assert peaks.fit(800, 1000)
    assert not peaks.fit(801, 1000)


def test_what_was_given_back_since_still_counts():
    peaks = MemoryPeaks()
    peaks.observe(free=100, total=1000, reserved=300)
    peaks.observe(free=700, total=1000, reserved=300)
    assert peaks.others == 600
    assert not peaks.fit(500, 1000)
