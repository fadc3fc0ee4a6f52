"""The shapes of the figures, and what must hold of every simulated training."""

from pathlib import Path

import pytest

from fusionloader.cli.simulator import figures
from fusionloader.cli.simulator.loader import simulate
from fusionloader.cli.simulator.setup import (
    AHEAD,
    ALL,
    BOTH,
    CPU_ONLY,
    GPU_ONLY,
    NAIVE,
    SimulationSetup,
    Variant,
)
from fusionloader.cli.simulator.times import load
from fusionloader.scheduler.gpu_sharing import Mode

FILE = Path(__file__).parents[2] / "benchmarks" / "service_times" / "torchvision-randaugment.json"


@pytest.fixture(scope="module")
def times():
    return load(FILE)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(figures, "STEPS", 150)
    monkeypatch.setattr(figures, "SETTLED", 90)


def test_cpu_workers_alone_reach_what_their_times_add_up_to(times):
    outcome = simulate(SimulationSetup(times, CPU_ONLY, 4, iterations=200))
    assert outcome.rate(10) == pytest.approx(4 / times.mean_seconds, rel=0.01)


def test_a_training_that_never_waits_runs_at_its_own_speed(times):
    slow = SimulationSetup(times, CPU_ONLY, 16, "ViT-B/16", iterations=60)
    assert simulate(slow).rate(20) == pytest.approx(times.models["ViT-B/16"])


def test_the_same_seed_gives_the_same_training(times):
    setup = SimulationSetup(times, BOTH, 4, "ResNet-50", iterations=80, seed=3)
    assert simulate(setup).steps == simulate(setup).steps


def test_temporal_sharing_does_not_slow_the_steps_of_training_down(times):
    temporal = Variant("temporal", Mode.TEMPORAL)
    setup = SimulationSetup(times, temporal, 4, "ResNet-50", iterations=60)
    alone = simulate(SimulationSetup(times, CPU_ONLY, 4, "ResNet-50", iterations=60))
    outcome = simulate(setup)
    waits = [b.time - a.time for a, b in zip(outcome.steps[:-1], outcome.steps[1:], strict=True)]
    assert min(waits) >= setup.step_seconds * (1 - 1e-9)
    assert outcome.rate(10) > 1.2 * alone.rate(10)


@pytest.mark.matrix
def test_figure_8_both_together_beat_either_side_and_many_workers_need_no_gpu(times):
    figure = figures.figure_8(times)
    few, many = (panel.bars for panel in figure.panels)
    for shares in (few, many):
        for model in range(3):
            best = max(shares[CPU_ONLY.name][model], shares[GPU_ONLY.name][model])
            assert shares[BOTH.name][model] >= 0.99 * best
    assert all(few[BOTH.name][m] > 1.05 * few[GPU_ONLY.name][m] for m in range(3))
    assert all(few[BOTH.name][m] > 1.7 * few[CPU_ONLY.name][m] for m in range(3))
    assert min(many[CPU_ONLY.name][1:]) > 0.99 > max(many[GPU_ONLY.name])


@pytest.mark.matrix
def test_figure_12_throughput_follows_the_workers_and_the_search_begins_again(times):
    figure = figures.figure_12(times)
    workers, alone, both, wait, _, _, searches = zip(*figure.rows, strict=True)
    alone, both = ([float(x.replace(",", "")) for x in rates] for rates in (alone, both))
    assert workers == ("4", "8", "12", "8", "4")
    for rates in (alone, both):
        assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4]
        assert rates[3] == pytest.approx(rates[1], rel=0.05)
        assert rates[4] == pytest.approx(rates[0], rel=0.05)
    assert all(b > 1.5 * a for a, b in zip(alone, both, strict=True))
    # No step waits longer than 4 workers alone need for a mini-batch, and a quarter.
    assert max(float(seconds) for seconds in wait) < 1.25 * 256 / alone[0]
    assert all(int(number) >= 1 for number in searches)


@pytest.mark.matrix
def test_figure_15b_every_part_brings_something_or_costs_nothing(times):
    figure = figures.figure_15b(times)
    shares = figure.panels[0].bars
    for model in range(3):
        values = [share[model] for share in shares.values()]
        assert all(b >= 0.98 * a for a, b in zip(values[:-1], values[1:], strict=True))
        assert shares[AHEAD.name][model] > 1.2 * shares[NAIVE.name][model]
    assert shares[ALL.name][0] > 1.1 * shares[AHEAD.name][0]
