"""When the GPU worker may start on work."""

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.temporal_gate import TemporalGate, needed_beside_training


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


def test_only_the_latest_event_counts():
    gate, first, second = TemporalGate(), Event(), Event()
    gate.requested(first.passed)
    gate.requested(second.passed)
    first.has_passed = True
    assert not gate.open
    second.has_passed = True
    assert gate.open


def test_an_event_that_has_passed_is_not_looked_at_again():
    gate, event = TemporalGate(), Event()
    event.has_passed = True
    gate.requested(event.passed)
    assert all(gate.open for _ in range(3))
    assert event.looks == 1


@given(st.lists(st.sampled_from(["ask", "pass", "deliver"]), max_size=60))
def test_it_is_open_from_the_event_to_the_delivery(moves):
    gate, event, requested = TemporalGate(), Event(), False
    for move in moves:
        if move == "ask":  # behind whatever training has put on the device
            event, requested = Event(), True
            gate.requested(event.passed)
        elif move == "pass":
            event.has_passed = True
        else:
            requested = False
            gate.delivered()
        assert gate.open == (requested and event.has_passed)


def test_beside_training_help_is_needed_while_nothing_is_ready():
    assert needed_beside_training(0)
    assert not needed_beside_training(1)
