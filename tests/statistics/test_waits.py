"""The waits of training: what counts as one, and its distribution."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.observe.statistics import waits
from fusionloader.observe.statistics.waits import WaitClock, Waits


class Time:
    """A clock that goes on as it is told."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Time()
    monkeypatch.setattr(waits, "time", made)
    return made


def steps(clock, measured, pairs):
    for elsewhere, waited in pairs:
        clock.now += elsewhere
        with measured:
            clock.now += waited


def test_the_share_is_that_of_the_time_between_two_batches(clock):
    counted = Waits()
    measured = WaitClock(counted, [], print)
    measured.begin_epoch()
    steps(clock, measured, [(5.0, 2.0), (3.0, 1.0), (5.0, 1.0)])  # the first one starts workers
    told = counted.stats()
    assert told.share == pytest.approx(0.2)
    assert told.step_seconds == pytest.approx(10.0)
    assert (told.steps, told.seconds, told.first_seconds) == (2, 2.0, 2.0)


def test_the_time_between_epochs_is_not_counted(clock):
    counted = Waits()
    measured = WaitClock(counted, [], print)
    for _ in range(3):
        measured.begin_epoch()
        steps(clock, measured, [(0.0, 0.5), (1.0, 1.0)])
        with pytest.raises(StopIteration), measured:
            raise StopIteration
        clock.now += 1000
    assert counted.stats().share == pytest.approx(0.5)
    assert counted.stats().first_seconds == pytest.approx(1.5)


def test_an_error_is_no_batch(clock):
    counted = Waits()
    measured = WaitClock(counted, [], print)
    steps(clock, measured, [(0, 1), (0, 1)])
    with pytest.raises(ValueError), measured:
        raise ValueError
    assert counted.stats().steps == 1


def test_before_the_second_batch_nothing_is_said(clock):
    counted = Waits()
    told = counted.stats()
    assert (told.share, told.p50, told.p99, told.histogram) == (None, None, None, ())
    steps(clock, WaitClock(counted, [], print), [(0, 1)])
    assert counted.stats().share is None


@given(st.lists(st.floats(1e-6, 1000), min_size=1, max_size=200), st.integers(0, 99))
def test_percentiles_are_within_five_in_a_hundred(waited, seed):
    counted = Waits()
    for seconds in random.Random(seed).sample(waited, len(waited)):
        counted.add(seconds, 0.0)
    told, ordered = counted.stats(), sorted(waited)
    for share, found in ((0.5, told.p50), (0.95, told.p95), (0.99, told.p99)):
        place = -(-len(ordered) * round(share * 100) // 100) - 1
        assert found == pytest.approx(ordered[place], rel=0.051)
    assert sum(count for _, count in told.histogram) == len(waited)


@given(st.lists(st.floats(0, 5000), max_size=50))
def test_coarse_buckets_are_exact_and_always_the_same(waited):
    counted = Waits()
    for seconds in waited:
        counted.add(seconds, 0.0)
    told = counted.stats().cumulative()
    assert [bound for bound, _ in told] == [bound for bound, _ in Waits().stats().cumulative()]
    assert {1e-6, 1e-3, 1.0, 1000.0, float("inf")} <= {bound for bound, _ in told}
    for bound, count in told:
        assert count == sum(seconds <= bound for seconds in waited)


def test_a_wait_beyond_all_buckets_is_counted():
    counted = Waits()
    counted.add(1e9, 0.0)
    assert counted.stats().histogram == ((float("inf"), 1),)
    assert counted.stats().p50 > 1000


def test_observers_are_told_of_each_step(clock):
    told = []

    class Observer:
        def asked(self):
            told.append("asked")

        def delivered(self):
            told.append("delivered")

    observers = []
    measured = WaitClock(Waits(), observers, print)
    steps(clock, measured, [(0, 1)])
    observers.append(Observer())
    steps(clock, measured, [(0, 1)])
    assert told == ["asked", "delivered"]
