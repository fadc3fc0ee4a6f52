"""Who has to leave a group, and how long an epoch waits for others."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.shared_pace import (
    LastEpoch,
    Pace,
    TakeClock,
    is_slow,
    leaves,
    waits_for,
)

SECONDS = st.floats(0, 10)
PACES = st.builds(
    Pace,
    stalled=SECONDS,
    since_take=SECONDS,
    usual=st.none() | SECONDS,
    share=st.none() | st.floats(0, 1),
    waiting=st.integers(0, 5),
    blocking=st.integers(1, 5),
)
AT_EASE = Pace(stalled=0.2, since_take=0.2, usual=0.02, share=0.1, waiting=1, blocking=1)


@given(PACES)
def test_nobody_leaves_whom_nobody_waits_for(pace):
    assert leaves(replace(pace, waiting=0)) is None


@given(PACES)
def test_who_lets_others_wait_longer_does_not_stay_for_that(pace):
    longer = replace(pace, stalled=pace.stalled + 1, since_take=pace.since_take + 1)
    assert leaves(pace) is None or leaves(longer) is not None


def test_who_has_stopped_leaves_soon():
    assert leaves(AT_EASE) is None
    assert leaves(replace(AT_EASE, stalled=0.26, since_take=0.26)) is not None
    unknown = replace(AT_EASE, usual=None, stalled=0.9, since_take=0.9)  # at its first mini-batches
    assert leaves(unknown) is None
    assert leaves(replace(unknown, stalled=1.0, since_take=1.0)) is not None


def test_who_is_as_slow_as_always_may_stay_that_long():
    slow = replace(AT_EASE, stalled=0.5, since_take=0.55, usual=0.2)
    assert leaves(slow) is None
    assert leaves(replace(slow, since_take=0.65)) is not None


def test_who_holds_others_up_most_of_the_time_leaves_unless_most_are_slow():
    slow = replace(AT_EASE, share=0.6)
    assert "60% of the time over 32" in leaves(slow)
    assert leaves(replace(slow, blocking=3)) is None
    assert leaves(replace(slow, waiting=3, blocking=3)) is not None


def test_the_clock_knows_the_usual_interval_and_the_share():
    assert TakeClock(now=0.0).usual is None
    clock = TakeClock(now=0.0, usual=0.3)
    assert clock.usual == 0.3  # of the epoch before
    for take in range(40):
        clock.holds_up(0.06, take * 0.1 + 0.09)
        clock.taken((take + 1) * 0.1)
    pace = clock.pace(4.05, 1, 1)
    assert abs(pace.usual - 0.1) < 1e-6 and abs(pace.since_take - 0.05) < 1e-6
    assert 0.55 < pace.share < 0.65 and pace.stalled == 0
    clock.holds_up(0.02, 4.06)
    assert abs(clock.pace(4.06, 1, 1).stalled - 0.02) < 1e-6


def waits(seconds, waited=0.0, last=0.0, is_doubtful=False, starved=0.0):
    before = LastEpoch(last, starved)
    return waits_for(seconds, waited=waited, last=before, is_doubtful=is_doubtful)


def test_an_epoch_waits_for_a_member_that_started_late():
    assert waits(1.9) and waits(3.9)  # twice as fast once the others wait
    assert not waits(4.1)
    assert waits(18.0, last=10.0) and waits(5.0, waited=7.0, last=10.0)
    assert not waits(7.0, waited=7.0, last=10.0)


def test_an_epoch_waits_for_a_member_that_is_far_behind_if_samples_are_what_it_lacks():
    assert waits(100.0, waited=9.9, last=10.0, starved=0.6)
    assert not waits(100.0, waited=10.1, last=10.0, starved=0.6)
    assert not waits(100.0, last=10.0, starved=0.4)
    assert not waits(100.0, last=10.0, starved=0.6, is_doubtful=True)


def test_a_member_that_makes_little_while_others_wait_is_slow():
    last = LastEpoch(10.0, 1.0)
    assert is_slow(0.4, waited=10.0, last=last) and not is_slow(0.6, waited=10.0, last=last)
    assert not is_slow(None, waited=10.0, last=last)
    assert not is_slow(0.0, waited=10.0, last=LastEpoch(0.0, 0.0))  # how long one takes is unknown


def test_an_epoch_waits_less_for_a_member_that_may_not_come():
    assert waits(4.9, last=10.0, is_doubtful=True)
    assert not waits(5.1, last=10.0, is_doubtful=True)


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100), st.booleans(), st.floats(0, 1))
def test_waiting_ends(seconds, waited, last, is_doubtful, starved):
    assert not waits(seconds, max(2.0, last) + waited + 1e-3, last, is_doubtful, starved)
