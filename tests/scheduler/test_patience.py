"""How long to wait for memory that is asked back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.patience import Patience


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
