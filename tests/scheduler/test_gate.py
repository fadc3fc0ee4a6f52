"""When the GPU worker may start on work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.gate import TemporalGate, needed_beside_training


class Event:
    """An event on a device that passes when the test says so."""

    def __init__(self):
        self.has_passed = False
        self.looks = 0

    def passed(self):
        self.looks += 1
        return self.has_passed


def test_it_is_closed_before_training_has_asked():
    assert not TemporalGate().open


def test_it_opens_when_the_event_has_passed_and_closes_on_delivery():
    gate, event = TemporalGate(), Event()
    gate.asked(event.passed)
    assert not gate.enter()
    event.has_passed = True
    assert gate.enter()
    gate.leave()
    assert not gate.delivered()
    assert not gate.enter()


def test_only_the_latest_event_counts():
    gate, first, second = TemporalGate(), Event(), Event()
    gate.asked(first.passed)
    gate.asked(second.passed)
    first.has_passed = True
    assert not gate.open
    second.has_passed = True
    assert gate.open


def test_an_event_that_has_passed_is_not_looked_at_again():
    gate, event = TemporalGate(), Event()
    event.has_passed = True
    gate.asked(event.passed)
    assert all(gate.open for _ in range(3))
    assert event.looks == 1


def test_delivery_tells_that_a_launch_is_still_on_the_device():
    gate = TemporalGate()
    gate.asked(lambda: True)
    assert gate.enter()
    assert gate.delivered()
    gate.asked(lambda: True)
    gate.leave()
    assert not gate.delivered()


def test_leaving_without_having_entered_is_an_error():
    with pytest.raises(RuntimeError, match="without enter"):
        TemporalGate().leave()


@given(st.lists(st.sampled_from(["ask", "pass", "deliver", "enter", "leave"]), max_size=60))
def test_no_launch_starts_while_training_is_at_work(moves):
    gate, event, working, inside = TemporalGate(), Event(), True, 0
    for move in moves:
        if move == "ask":  # behind whatever training has put on the device
            event = Event()
            gate.asked(event.passed)
            working = True
        elif move == "pass" and not event.has_passed:
            event.has_passed = True
            working = False
        elif move == "deliver":
            assert gate.delivered() == (inside > 0)
            working, event = True, Event()
            event.has_passed = True  # nothing is left to wait for until training asks again
        elif move == "enter":
            entered = gate.enter()
            assert not (entered and working)
            inside += entered
        elif move == "leave" and inside:
            gate.leave()
            inside -= 1


def test_beside_training_help_is_needed_while_nothing_is_ready():
    assert needed_beside_training(0)
    assert not needed_beside_training(1)
    assert needed_beside_training(1, enough=2)
