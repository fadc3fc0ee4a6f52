"""The threshold search: towards the balance, and still once it is there."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusionloader.scheduler.threshold import MiniBatchDone, Side, ThresholdSearch

TINY_BATCHES = 64


def done(search, cpu, gpu, *, workers=4, cpu_rate=100.0, gpu_rate=1000.0, tiny=TINY_BATCHES):
    return MiniBatchDone(tiny, search.threshold, workers, cpu, gpu, cpu_rate, gpu_rate)


class Machine:
    """Two sides whose times depend on the threshold alone, with log-normal noise on both."""

    def __init__(self, balance, noise=0.0, seed=0):
        self.balance, self.noise = balance, noise
        self.random = random.Random(seed)

    def run(self, search, mini_batches, **facts):
        thresholds = []
        for _ in range(mini_batches):
            cpu, gpu = TINY_BATCHES - search.threshold, TINY_BATCHES - 2 * self.balance
            gpu += search.threshold + 0.5
            cpu, gpu = (x * self.random.lognormvariate(0, self.noise) for x in (cpu, gpu))
            rates = {s: r * self.random.lognormvariate(0, self.noise / 3) for s, r in RATES.items()}
            facts = {**rates, **facts}
            search.finished(done(search, cpu, gpu, **facts))
            thresholds.append(search.threshold)
        return thresholds


RATES = {"cpu_rate": 100.0, "gpu_rate": 1000.0}
FEW = TINY_BATCHES + 16  # mini-batches after which every search is over


@pytest.mark.parametrize(
    ("cpu", "gpu", "side"),
    [(2.0, 1.0, Side.CPU), (1.0, 2.0, Side.GPU), (1.0, None, Side.CPU), (None, 1.0, Side.GPU),
     (1.0, 1.0, None), (None, None, None)],
)  # fmt: skip
def test_the_side_that_ends_last_was_busy_last(cpu, gpu, side):
    assert MiniBatchDone(4, 0, 1, cpu, gpu).busy_last is side


def test_the_busy_side_gets_less():
    search = ThresholdSearch()
    search.finished(done(search, 2.0, 1.0))
    search.finished(done(search, 2.0, None))
    assert search.threshold == 2
    search.finished(done(search, 1.0, 2.0))
    assert search.threshold == 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.none() | st.floats(0, 10),
            st.none() | st.floats(0, 10),
            st.integers(1, 3),
            st.none() | st.floats(0.1, 10),
        ),
        max_size=80,
    )
)
def test_the_threshold_stays_within_the_mini_batch(reports):
    search = ThresholdSearch()
    for tiny, cpu, gpu, workers, rate in reports:
        search.finished(MiniBatchDone(tiny, search.threshold, workers, cpu, gpu, rate, rate))
        assert 0 <= search.threshold <= tiny


@given(balance=st.integers(0, 32))
def test_without_noise_it_settles_next_to_the_balance_and_stays(balance):
    search = ThresholdSearch()
    thresholds = Machine(balance).run(search, 150)
    assert search.settled
    assert abs(thresholds[-1] - balance) <= 1
    assert len(set(thresholds[60:])) == 1


@settings(deadline=None)
@given(balance=st.integers(0, 32), noise=st.floats(0.0, 0.3), seed=st.integers(0, 10_000))
def test_noise_does_not_make_it_wander_for_ever(balance, noise, seed):
    search = ThresholdSearch()
    thresholds = Machine(balance, noise, seed).run(search, FEW + 400)
    settled = thresholds[FEW:]
    moves = sum(a != b for a, b in zip(settled[:-1], settled[1:], strict=True))
    # A rate may seem to have changed by more than 20 % by chance, but hardly ever.
    assert search.restarts <= 1
    assert moves <= FEW * search.restarts


def test_under_noise_it_still_finds_the_balance():
    found = []
    for seed in range(40):
        search = ThresholdSearch()
        Machine(20, 0.1, seed).run(search, FEW)
        found.append(search.threshold)
    assert 16 <= sorted(found)[len(found) // 2] <= 24
    assert sum(10 <= threshold <= 30 for threshold in found) >= 36


def test_it_keeps_the_neighbour_with_the_shorter_makespan():
    search = ThresholdSearch()
    for _ in range(20):
        if search.threshold <= 5:
            search.finished(done(search, 9.0, 1.0))
        else:
            search.finished(done(search, 1.0, 7.0))
    assert (search.settled, search.threshold) == (True, 6)


def settled_search(balance=10):
    search = ThresholdSearch()
    Machine(balance).run(search, 80)
    assert search.settled
    return search


def test_it_searches_again_when_workers_come_or_go():
    search = settled_search()
    thresholds = Machine(20).run(search, 80, workers=8)
    assert search.restarts == 1
    assert thresholds[0] != thresholds[-1]
    assert abs(search.threshold - 20) <= 1


@pytest.mark.parametrize("rate", ["cpu_rate", "gpu_rate"])
def test_it_searches_again_when_a_rate_changes_by_more_than_a_fifth(rate):
    search = settled_search()
    Machine(10).run(search, 30)
    Machine(10).run(search, 30, **{rate: RATES[rate] * 1.15})
    assert search.restarts == 0
    Machine(20).run(search, 100, **{rate: RATES[rate] * 0.75})
    assert search.restarts == 1
    assert abs(search.threshold - 20) <= 1


def test_one_slow_mini_batch_changes_nothing():
    search = settled_search()
    Machine(10).run(search, 30)
    before = search.threshold
    for _ in range(5):
        search.finished(done(search, 900.0, 1.0, cpu_rate=1.0))
        Machine(10).run(search, 5)
    assert (search.restarts, search.threshold) == (0, before)


def test_a_mini_batch_that_ran_under_another_threshold_decides_nothing():
    search = ThresholdSearch()
    old = done(search, 2.0, 1.0)
    search.finished(old)
    search.finished(old)
    assert search.threshold == 1


def test_the_last_mini_batch_of_an_epoch_decides_nothing():
    search = ThresholdSearch()
    for _ in range(3):
        search.finished(done(search, 2.0, 1.0))
    search.finished(done(search, 1.0, 2.0, tiny=10))
    assert search.threshold == 3
    search.finished(done(search, 2.0, 1.0))
    assert search.threshold == 4
