"""How close the schedulers come to the best that could be done knowing everything."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_times import made_times
from offline import exact, shortest
from support.campaigns import examples

from fusionloader.cli.simulator.loader import simulate
from fusionloader.cli.simulator.setup import ALL, CPU_ONLY, NAIVE, SimulationSetup
from fusionloader.scheduler.gpu_sharing import Mode

LARGEST = 32  # GroupSize's
SPATIAL = replace(ALL, mode=Mode.SPATIAL)
seconds = st.floats(0.1, 10.0)


@settings(max_examples=60, deadline=None)
@given(
    work=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=6),
    workers=st.integers(1, 3),
    launch=st.floats(0.0, 5.0),
    largest=st.integers(1, 4),
)
def test_no_schedule_beats_the_bound(work, workers, launch, largest):
    best = exact(work, workers, launch, largest)
    assert shortest(work, workers, launch, largest) <= best * (1 + 1e-9)


def ratio_to_the_bound(variant, times, workers, seed):
    setup = SimulationSetup(times, variant, workers, iterations=100, seed=seed)
    outcome = simulate(setup)
    work = [tiny_batch for mini_batch in outcome.work for tiny_batch in mini_batch]
    return outcome.makespan / shortest(work, workers, times.gpu.launch, LARGEST)


@pytest.mark.properties
@settings(max_examples=examples(10, 25), deadline=None)
@given(
    workers=st.integers(1, 16),
    spread=st.floats(0.0, 0.6),
    noise=st.floats(0.0, 0.2),
    gpu_speed=st.floats(2.0, 12.0),
    launch=st.floats(0.0, 0.3),
    growth=st.floats(0.0, 0.5),
    seed=st.integers(0, 1000),
)
def test_an_epoch_takes_at_most_a_tenth_longer_than_the_optimum(
    workers, spread, noise, gpu_speed, launch, growth, seed
):
    """100 mini-batches of 64 tiny-batches, the learning of threshold and group size included."""
    times = made_times(
        spread=spread, noise=noise, gpu_speed=gpu_speed, launch=launch, growth=growth
    )
    assert 1.0 - 1e-9 <= ratio_to_the_bound(SPATIAL, times, workers, seed) <= 1.10


@pytest.mark.parametrize("variant", [CPU_ONLY, NAIVE], ids=lambda variant: variant.name)
def test_the_bound_is_not_met_by_doing_less(variant):
    assert ratio_to_the_bound(variant, made_times(), 4, 0) > 1.3
