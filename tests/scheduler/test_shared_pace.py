"""Who has to leave a group, and how long an epoch waits for others."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.shared_pace import Pace, TakeClock, keeps_gathering, leaves

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
AT_EASE = Pace(stalled=0.05, since_take=0.05, usual=0.02, share=0.1, waiting=1, blocking=1)


@given(PACES)
def test_nobody_leaves_whom_nobody_waits_for(pace):
    assert leaves(replace(pace, waiting=0)) is None


@given(PACES)
def test_who_lets_others_wait_longer_does_not_stay_for_that(pace):
    longer = replace(pace, stalled=pace.stalled + 1, since_take=pace.since_take + 1)
    assert leaves(pace) is None or leaves(longer) is not None


def test_who_has_stopped_leaves_soon():
    assert leaves(AT_EASE) is None
    assert leaves(replace(AT_EASE, stalled=0.07, since_take=0.07)) is not None


def test_who_is_as_slow_as_always_may_stay_that_long():
    slow = replace(AT_EASE, stalled=0.3, since_take=0.35, usual=0.2)
    assert leaves(slow) is None
    assert leaves(replace(slow, since_take=0.45)) is not None


def test_who_holds_others_up_most_of_the_time_leaves_unless_most_are_slow():
    slow = replace(AT_EASE, share=0.6)
    assert "60% of the time over 32" in leaves(slow)
    assert leaves(replace(slow, blocking=3)) is None
    assert leaves(replace(slow, waiting=3, blocking=3)) is not None


def test_the_clock_knows_the_usual_interval_and_the_share():
    clock = TakeClock(now=0.0)
    assert clock.pace(5.0, 1, 1).usual is None
    for take in range(40):
        clock.holds_up(0.06, take * 0.1 + 0.09)
        clock.taken((take + 1) * 0.1)
    pace = clock.pace(4.05, 1, 1)
    assert abs(pace.usual - 0.1) < 1e-6 and abs(pace.since_take - 0.05) < 1e-6
    assert 0.55 < pace.share < 0.65 and pace.stalled == 0
    clock.holds_up(0.02, 4.06)
    assert abs(clock.pace(4.06, 1, 1).stalled - 0.02) < 1e-6


def test_an_epoch_waits_for_who_comes_in_time_and_no_longer():
    assert not keeps_gathering(0.0, None, [])
    assert keeps_gathering(0.0, None, [1.9])
    assert not keeps_gathering(0.0, None, [2.1])
    assert keeps_gathering(0.0, 20.0, [2.1, 100.0])
    assert not keeps_gathering(10.1, 20.0, [0.0])


@given(st.floats(0, 100), st.none() | st.floats(0, 100), st.lists(st.floats(0, 100)))
def test_waiting_ends(waited, last_epoch, coming):
    assert not keeps_gathering(max(2.0, (last_epoch or 0) / 2) + waited + 1e-3, last_epoch, coming)
