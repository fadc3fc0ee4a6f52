"""The choice between off, temporal and spatial: never worse than off, and again after a change."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_times import made_times
from support.campaigns import examples

from fusionloader.cli.simulator.loader import simulate
from fusionloader.cli.simulator.setup import BOTH, CPU_ONLY, SimulationSetup, Variant
from fusionloader.scheduler.gpu_sharing import Mode, SharingChoice

SAMPLES = 256
rates = st.floats(100.0, 10_000.0)


def train(choice, iterations, rate, *, workers=4, noise=0.0, seed=0, backlog=0, waits=True):
    """Trains at ``rate[mode]`` samples per second; returns the modes used.

    Training takes no time itself: all of an iteration is waiting, unless it never waits.
    """
    source = random.Random(seed)
    modes = []
    for _ in range(iterations):
        modes.append(choice.mode)
        seconds = SAMPLES / rate[choice.mode] * (1 + noise * source.uniform(-1, 1))
        choice.iteration(seconds, SAMPLES, workers, backlog, seconds if waits else 0.0)
    return modes


def speeds(off, temporal, spatial):
    return {Mode.OFF: off, Mode.TEMPORAL: temporal, Mode.SPATIAL: spatial}


@pytest.mark.parametrize(
    ("rate", "chosen"),
    [
        (speeds(1000, 1200, 1100), Mode.TEMPORAL),
        (speeds(1000, 1200, 1500), Mode.SPATIAL),
        (speeds(1000, 900, 800), Mode.OFF),
        (speeds(1000, 1000, 1000), Mode.OFF),
        (speeds(1000, 1030, 1040), Mode.OFF),
    ],
)
def test_the_fastest_mode_wins_if_it_clearly_beats_off(rate, chosen):
    choice = SharingChoice()
    modes = train(choice, 200, rate)
    assert not choice.profiling
    assert set(modes[100:]) == {chosen}
    assert choice.decisions == 1
    assert choice.rates == pytest.approx(rate)


def test_it_profiles_a_few_iterations_of_every_mode():
    choice = SharingChoice()
    modes = train(choice, 36, speeds(1000, 1200, 1100))
    assert {mode: modes.count(mode) for mode in Mode} == dict.fromkeys(Mode, 12)
    assert (choice.profiling, choice.mode) == (False, Mode.TEMPORAL)


def test_profiling_ends_at_once_where_cpu_workers_keep_up():
    choice = SharingChoice()
    assert set(train(choice, 200, speeds(1000, 900, 800), waits=False)) == {Mode.OFF}
    assert (choice.decisions, choice.rates) == (1, {Mode.OFF: pytest.approx(1000)})
    assert choice.describe() == (
        "GPU worker: off, since CPU workers keep up (samples/s: off 1,000)"
    )
    choice = SharingChoice()
    train(choice, 6, speeds(1000, 900, 800), waits=False)
    assert not choice.profiling


def test_other_modes_are_tried_once_cpu_workers_keep_up_no_more():
    choice = SharingChoice()
    rate = speeds(1000, 1200, 1500)
    train(choice, 100, rate, waits=False)
    train(choice, 100, rate)
    assert (choice.decisions, choice.mode) == (2, Mode.SPATIAL)


def test_where_off_was_compared_with_others_waiting_is_no_reason_to_profile_again():
    choice = SharingChoice()
    train(choice, 400, speeds(1000, 900, 800))
    assert (choice.decisions, choice.mode) == (1, Mode.OFF)


def test_off_does_not_shine_with_what_another_mode_has_prepared():
    """Off takes from a backlog at full speed, and prepares half as much meanwhile."""
    choice = SharingChoice()
    backlog = 0
    for _ in range(60):
        if choice.mode is Mode.OFF:
            backlog = max(backlog - SAMPLES // 2, 0)
            seconds = 0.1 if backlog else 0.2
        else:
            backlog, seconds = min(backlog + SAMPLES, 8 * SAMPLES), 0.11
        choice.iteration(seconds, SAMPLES, 4, backlog, seconds)
    assert choice.rates[Mode.OFF] == pytest.approx(SAMPLES / 0.2)
    assert choice.mode is not Mode.OFF


def test_it_decides_again_when_the_number_of_workers_changes():
    choice = SharingChoice()
    train(choice, 100, speeds(1000, 1200, 1500))
    train(choice, 100, speeds(3000, 2400, 2000), workers=16)
    assert (choice.decisions, choice.mode) == (2, Mode.OFF)


@pytest.mark.parametrize(("factor", "decisions"), [(0.75, 2), (1.3, 2), (0.9, 1), (1.15, 1)])
def test_it_decides_again_when_the_rate_changes_by_more_than_a_fifth(factor, decisions):
    choice = SharingChoice()
    rate = speeds(1000, 1200, 1500)
    train(choice, 200, rate)
    train(choice, 200, {mode: speed * factor for mode, speed in rate.items()})
    assert choice.decisions == decisions


def test_it_decides_again_when_the_mode_falls_below_what_off_reached():
    choice = SharingChoice()
    train(choice, 200, speeds(1000, 900, 1100))
    assert choice.mode is Mode.SPATIAL
    train(choice, 200, speeds(1000, 900, 950))
    assert choice.mode is Mode.OFF


def test_a_pause_does_not_lead_to_another_mode():
    choice = SharingChoice()
    rate = speeds(1000, 1200, 1500)
    train(choice, 8, rate)
    choice.iteration(60.0, SAMPLES, 4, 0, 0.0)  # a checkpoint, in the middle of a turn
    train(choice, 200, rate)
    assert choice.mode is Mode.SPATIAL
    choice.iteration(60.0, SAMPLES, 4, 0, 0.0)
    train(choice, 100, rate)
    assert (choice.mode, choice.decisions) == (Mode.SPATIAL, 1)


def test_a_forbidden_mode_is_not_used_again():
    choice = SharingChoice()
    rate = speeds(1000, 1200, 1500)
    train(choice, 100, rate)
    choice.forbid(Mode.SPATIAL)
    assert set(train(choice, 100, rate)[60:]) == {Mode.TEMPORAL}
    choice.forbid(Mode.TEMPORAL)
    assert set(train(choice, 100, rate)) == {Mode.OFF}
    assert not choice.profiling


def test_a_mode_that_is_forbidden_before_its_turn_costs_no_iteration():
    choice = SharingChoice()
    rate = speeds(1000, 1200, 1500)
    before = train(choice, 8, rate)
    choice.forbid(Mode.SPATIAL)
    modes = before + train(choice, 16, rate)
    assert {mode: modes.count(mode) for mode in set(modes)} == {Mode.OFF: 12, Mode.TEMPORAL: 12}
    assert (choice.profiling, choice.mode) == (False, Mode.TEMPORAL)


def test_a_mode_that_is_forbidden_in_its_turn_is_left_at_once():
    choice = SharingChoice()
    rate = speeds(1000, 1200, 1500)
    assert train(choice, 14, rate)[-1] is Mode.SPATIAL
    choice.forbid(Mode.SPATIAL)
    assert Mode.SPATIAL not in train(choice, 12, rate)
    assert (choice.profiling, choice.mode) == (False, Mode.TEMPORAL)


def test_to_forbid_what_is_not_in_use_changes_no_decision():
    choice = SharingChoice()
    train(choice, 100, speeds(1000, 1500, 1200))
    choice.forbid(Mode.SPATIAL)
    assert (choice.profiling, choice.mode, choice.decisions) == (False, Mode.TEMPORAL, 1)


def test_the_log_line_tells_the_decision_and_the_rates():
    choice = SharingChoice()
    assert "still profiling" in choice.describe()
    train(choice, 100, speeds(1000, 1200, 1500))
    expected = "GPU worker: spatial (samples/s: off 1,000, temporal 1,200, spatial 1,500)"
    assert choice.describe() == expected


@given(rates, rates, rates, st.floats(0.0, 0.02), st.integers(0, 1000), st.booleans())
def test_the_choice_is_never_slower_than_off(off, temporal, spatial, noise, seed, memory_is_short):
    """Iteration times within 2 % of the true ones: the margin of 5 % covers both sides' error."""
    rate = speeds(off, temporal, spatial)
    choice = SharingChoice()
    if memory_is_short:
        choice.forbid(Mode.SPATIAL)
    train(choice, 60, rate, noise=noise, seed=seed)
    assert rate[choice.mode] >= off


@pytest.mark.matrix
@pytest.mark.properties
@settings(max_examples=examples(8, 20), deadline=None)
@given(
    workers=st.integers(1, 14),
    step=st.floats(0.3, 2.5),
    gpu_speed=st.floats(0.5, 20.0),
    launch=st.floats(0.0, 4.0),
    beside=st.floats(0.3, 1.0),
    seed=st.integers(0, 1000),
)
def test_at_most_40_simulated_steps_find_a_mode_close_to_the_best(
    workers, step, gpu_speed, launch, beside, seed
):
    """With ``prefetch_factor=2``; ``step`` is training's speed relative to all CPU workers."""
    times = made_times(
        gpu_speed=gpu_speed, launch=launch, beside=beside, models={"model": step * workers * 417}
    )
    setup = SimulationSetup(
        times, BOTH, workers, "model", 160, 128, in_flight=2 * workers, seed=seed
    )
    fixed = {mode: replace(setup, variant=Variant(mode.value, mode)) for mode in Mode}
    true = {mode: simulate(setup).rate(80) for mode, setup in fixed.items()}
    chosen = simulate(replace(setup, iterations=41)).steps[40]
    assert true[chosen.mode] >= 0.85 * max(true.values())
    assert true[chosen.mode] >= 0.98 * true[Mode.OFF]


@pytest.mark.matrix
@pytest.mark.properties
@settings(max_examples=examples(6, 15), deadline=None)
@given(
    workers=st.integers(1, 12),
    step_rate=st.floats(500.0, 8000.0),
    gpu_speed=st.floats(0.3, 12.0),
    launch=st.floats(0.0, 4.0),
    beside=st.floats(0.3, 1.0),
    seed=st.integers(0, 1000),
)
def test_a_simulated_training_is_never_slower_than_with_cpu_workers_alone(
    workers, step_rate, gpu_speed, launch, beside, seed
):
    times = made_times(
        gpu_speed=gpu_speed, launch=launch, beside=beside, models={"model": step_rate}
    )
    setup = SimulationSetup(
        times, BOTH, workers, "model", iterations=200, batch_size=128, seed=seed
    )
    both = simulate(setup).rate(100)
    alone = simulate(replace(setup, variant=CPU_ONLY)).rate(100)
    assert both >= 0.98 * alone
