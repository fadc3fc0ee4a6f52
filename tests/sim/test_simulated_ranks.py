"""Simulated ranks: what lending must bring, and what it must not cost."""

from pathlib import Path

import pytest

from fusionloader.sim import figures
from fusionloader.sim.ranks import RanksSetup, Sharing, simulate_ranks
from fusionloader.sim.times import load

FILE = Path(__file__).parents[2] / "benchmarks" / "service_times" / "torchvision-randaugment.json"


@pytest.fixture(scope="module")
def times():
    return load(FILE)


def seconds(times, sharing, ranks=4, workers=2, **changes):
    return simulate_ranks(RanksSetup(times, ranks, workers, sharing, 20, 32, **changes)).seconds


@pytest.mark.parametrize("by_turns", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_lending_is_near_one_pool_and_never_behind_no_lending(times, by_turns, seed):
    changes = {"by_turns": by_turns, "seed": seed}
    lent = seconds(times, Sharing.LENDING, **changes)
    assert lent <= 1.01 * seconds(times, Sharing.NONE, **changes)
    assert seconds(times, Sharing.POOL, **changes) >= 0.9 * lent


def test_a_rank_that_is_always_slow_is_helped_by_all_others(times):
    # Three units of work on a quarter of the workers, or six on all: twice as fast at best.
    assert seconds(times, Sharing.NONE) / seconds(times, Sharing.LENDING) > 1.7


def test_equal_ranks_lose_nothing(times):
    equal = {"slower": 1.0}
    lent, alone = (seconds(times, how, **equal) for how in (Sharing.LENDING, Sharing.NONE))
    assert lent <= 1.01 * alone


def test_the_same_seed_gives_the_same_training(times):
    assert seconds(times, Sharing.LENDING, seed=4) == seconds(times, Sharing.LENDING, seed=4)


def test_a_decision_that_takes_its_time_costs_little(times):
    slow = seconds(times, Sharing.LENDING, reaction=0.01)
    assert slow <= 1.1 * seconds(times, Sharing.LENDING)


def test_figure_15a_has_a_row_for_every_machine(times, monkeypatch):
    monkeypatch.setattr(figures, "RANKS", ((2, 1), (4, 2)))
    monkeypatch.setattr(figures, "RANK_STEPS", 8)
    figure = figures.figure_15a(times)
    assert [row[:3] for row in figure.rows] == [
        (slow, ranks, workers)
        for slow in ("the same", "by turns")
        for ranks, workers in (("2", "1"), ("4", "2"))
    ]
    assert all(float(row[3]) >= 0.95 for row in figure.rows)
