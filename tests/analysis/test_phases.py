"""Windows: which steps they count, and when they have enough."""

import pytest

from fusionloader.cli.analysis.phases import MeasuredWindow, Phase


def test_the_first_steps_of_workers_are_left_out():
    window = MeasuredWindow(Phase.TODAY, 10.0, skip=2)
    for _ in range(4):
        window.add(8, 1.0, 3.0, 0.5)
    assert window.result.steps == 2
    assert window.result.rate == 16 / 8
    assert window.result.wait_share == 0.25
    assert window.result.cpu_seconds == 1.0


def test_when_workers_begin_anew_their_first_steps_are_left_out_again():
    window = MeasuredWindow(Phase.WARM, 10.0, skip=1)
    for _ in range(2):
        window.restart()
        window.add(8, 100.0, 0.0, 0.0)
        window.add(8, 1.0, 1.0, 0.0)
    assert (window.result.steps, window.result.seconds) == (2, 4.0)


@pytest.mark.parametrize(("steps", "seconds", "done"), [(4, 1.0, False), (5, 0.1, False)])
def test_few_or_short_steps_are_not_enough(steps, seconds, done):
    window = MeasuredWindow(Phase.TODAY, 1.0, skip=0)
    for _ in range(steps):
        window.add(1, 0.0, seconds, 0.0)
    assert window.done is done
    window.add(1, 0.0, 1.0, 0.0)
    assert window.done


def test_a_slow_step_is_enough_by_itself_if_it_takes_long():
    window = MeasuredWindow(Phase.TODAY, 1.0, skip=0)
    window.add(1, 0.0, 4.5, 0.0)
    assert window.done


def test_short_epochs_do_not_go_on_forever():
    window = MeasuredWindow(Phase.TODAY, 100.0, skip=0)
    for _ in range(5):
        window.restart()
        window.add(1, 0.0, 0.1, 0.0)
    assert window.done


def test_nothing_was_counted_before_the_first_step():
    assert MeasuredWindow(Phase.TODAY, 1.0, skip=1).result is None
