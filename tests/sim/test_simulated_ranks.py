"""Simulated ranks: the least gain and the largest cost of sharing workers."""

from pathlib import Path

import pytest

from fusionloader.cli.simulator import figures
from fusionloader.cli.simulator.ranks import RanksSetup, RanksSimulation, WorkerSharing
from fusionloader.cli.simulator.times import load

FILE = Path(__file__).parents[2] / "benchmarks" / "service_times" / "torchvision-randaugment.json"


@pytest.fixture(scope="module")
def times():
    return load(FILE)


def seconds(times, sharing, ranks=4, workers=2, **changes):
    setup = RanksSetup(times, ranks, workers, sharing, 20, 32, **changes)
    return RanksSimulation(setup).run().seconds


@pytest.mark.parametrize("random_rank", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_sharing_is_near_one_pool_and_never_behind_no_sharing(times, random_rank, seed):
    changes = {"random_rank": random_rank, "seed": seed}
    shared = seconds(times, WorkerSharing.IDLE, **changes)
    assert shared <= 1.01 * seconds(times, WorkerSharing.NONE, **changes)
    assert seconds(times, WorkerSharing.POOL, **changes) >= 0.9 * shared


def test_a_rank_that_is_always_slow_is_helped_by_all_others(times):
    # Three units of work on a quarter of the workers, or six on all: twice as fast at best.
    assert seconds(times, WorkerSharing.NONE) / seconds(times, WorkerSharing.IDLE) > 1.7


def test_equal_ranks_lose_nothing(times):
    equal = {"slower": 1.0}
    shared, alone = (
        seconds(times, how, **equal) for how in (WorkerSharing.IDLE, WorkerSharing.NONE)
    )
    assert shared <= 1.01 * alone


def test_the_same_seed_gives_the_same_training(times):
    assert seconds(times, WorkerSharing.IDLE, seed=4) == seconds(times, WorkerSharing.IDLE, seed=4)


def test_a_late_decision_costs_little(times):
    slow = seconds(times, WorkerSharing.IDLE, reaction=0.01)
    assert slow <= 1.1 * seconds(times, WorkerSharing.IDLE)


def test_figure_15a_has_a_row_for_every_machine(times, monkeypatch):
    monkeypatch.setattr(figures, "RANKS", ((2, 1), (4, 2)))
    monkeypatch.setattr(figures, "RANK_STEPS", 8)
    figure = figures.figure_15a(times)
    assert [row[:3] for row in figure.rows] == [
        (slow, ranks, workers)
        for slow in ("the same", "random")
        for ranks, workers in (("2", "1"), ("4", "2"))
    ]
    assert all(float(row[3]) >= 0.95 for row in figure.rows)
