"""FusionFlow's figures 8, 12 and 15, simulated: which setups they compare, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusionloader.cli.simulator.loader import simulate
from fusionloader.cli.simulator.offload_figure import figure_offload
from fusionloader.cli.simulator.panels import Bars, Lines, SimulationFigure
from fusionloader.cli.simulator.ranks import RanksSetup, RanksSimulation, WorkerSharing
from fusionloader.cli.simulator.setup import (
    AFFINE,
    AHEAD,
    ALL,
    BOTH,
    CPU_ONLY,
    GPU_ONLY,
    NAIVE,
    Outcome,
    SimulationSetup,
    Variant,
)
from fusionloader.cli.simulator.times import ServiceTimes

STEPS = 240
SETTLED = 120  # steps left out at the start: profiling and searching are over by then
PHASES = (4, 8, 12, 8, 4)
PHASE_STEPS = 160
RANKS = ((2, 4), (8, 4), (32, 4), (64, 4), (64, 16))  # and workers of each
RANK_STEPS = 30
WINDOW = 8  # steps of a point of figure 12


def _shares(
    times: ServiceTimes, variants: Sequence[Variant], workers: int, seed: int
) -> dict[str, list[float]]:
    """Throughput of every variant on every model, 1 being training without data preparation."""
    return {
        variant.name: [
            simulate(SimulationSetup(times, variant, workers, model, STEPS, seed=seed)).rate(
                SETTLED
            )
            / ideal
            for model, ideal in times.models.items()
        ]
        for variant in variants
    }


def figure_8(times: ServiceTimes, seed: int = 0) -> SimulationFigure:
    """One GPU, few and many CPU workers: either side alone, and both."""
    variants = (CPU_ONLY, GPU_ONLY, BOTH)
    rows: list[tuple[str, ...]] = []
    panels: list[Bars | Lines] = []
    for workers in (4, 16):
        shares = _shares(times, variants, workers, seed)
        for column, model in enumerate(times.models):
            values = [f"{shares[variant.name][column]:.2f}" for variant in variants]
            rows.append((model, str(workers), *values))
        panels.append(Bars(f"{workers} CPU workers", tuple(times.models), shares))
    header = ("model", "CPU workers", *(variant.name for variant in variants))
    note = "Throughput relative to training on data that is already on the device."
    return SimulationFigure(
        "Figure 8: throughput by who prepares the data", header, rows, panels, note
    )


def figure_15b(times: ServiceTimes, seed: int = 0) -> SimulationFigure:
    """What every part of the method brings, with 4 CPU workers."""
    variants = (CPU_ONLY, NAIVE, AHEAD, AFFINE, ALL)
    shares = _shares(times, variants, 4, seed)
    rows = [
        (model, *(f"{shares[variant.name][column]:.2f}" for variant in variants))
        for column, model in enumerate(times.models)
    ]
    header = ("model", *(variant.name for variant in variants))
    note = (
        "Throughput relative to training on data that is already on the device. none: the GPU "
        "worker builds its task at every launch; all: group size and sharing mode as well."
    )
    panel = Bars("4 CPU workers", tuple(times.models), shares)
    return SimulationFigure("Figure 15(b): the parts of the method", header, rows, [panel], note)


def figure_15a(times: ServiceTimes, seed: int = 0) -> SimulationFigure:
    """What sharing workers between ranks brings."""
    rows: list[tuple[str, ...]] = []
    panels: list[Bars | Lines] = []
    for slow, random_rank in (("the same", False), ("random", True)):
        bars: dict[str, list[float]] = {WorkerSharing.IDLE.value: [], WorkerSharing.POOL.value: []}
        for ranks, workers in RANKS:
            outcomes = {
                how: RanksSimulation(
                    RanksSetup(
                        times, ranks, workers, how, RANK_STEPS, 16 * workers,
                        random_rank=random_rank, seed=seed,
                    )
                ).run()
                for how in WorkerSharing
            }  # fmt: skip
            gains = {
                how: outcomes[WorkerSharing.NONE].seconds / outcome.seconds
                for how, outcome in outcomes.items()
            }
            shared = outcomes[WorkerSharing.IDLE]
            for how in (WorkerSharing.IDLE, WorkerSharing.POOL):
                bars[how.value].append(gains[how])
            rows.append(
                (
                    slow,
                    str(ranks),
                    str(workers),
                    f"{gains[WorkerSharing.IDLE]:.2f}",
                    f"{gains[WorkerSharing.POOL]:.2f}",
                    f"{shared.decisions / shared.seconds:.0f}",
                    f"{shared.decision_seconds / shared.seconds * 1e3:.1f}",
                )
            )
        panels.append(Bars(f"slow rank: {slow}", tuple(f"{r} x {w}" for r, w in RANKS), bars))
    header = ("slow rank", "ranks", "workers", "sharing", "one pool", "decisions/s", "their ms/s")
    note = (
        "Steps per second relative to no sharing. Mini-batches of one rank, the same or a random "
        "one at each step, are three times as costly; sample times have a Pareto tail. The last "
        "column is measured: CPU time of the decisions on this machine, for a second of training."
    )
    return SimulationFigure("Figure 15(a): workers between ranks", header, rows, panels, note)


def figure_12(times: ServiceTimes, seed: int = 0) -> SimulationFigure:
    """The number of CPU workers changes during training."""
    model = max(times.models, key=times.models.__getitem__)  # the model that waits for data most
    changes = {number * PHASE_STEPS: workers for number, workers in enumerate(PHASES)}
    outcomes = [
        simulate(
            SimulationSetup(
                times, variant, PHASES[0], model, len(PHASES) * PHASE_STEPS,
                workers_at=changes, seed=seed,
            )
        )
        for variant in (CPU_ONLY, BOTH)
    ]  # fmt: skip
    rows = [_phase(number, outcomes) for number in range(len(PHASES))]
    header = (
        "CPU workers", CPU_ONLY.name, BOTH.name, "longest wait s", "mode", "threshold", "searches",
    )  # fmt: skip
    marks = tuple((step, f"{workers} workers") for step, workers in changes.items())
    rates = {outcome.setup.variant.name: _rates(outcome) for outcome in outcomes}
    thresholds = [(float(n), float(step.threshold)) for n, step in enumerate(outcomes[1].steps)]
    panels: list[Bars | Lines] = [
        Lines(f"samples per second, {model}", rates, marks),
        Lines("threshold", {BOTH.name: thresholds}, marks),
    ]
    note = (
        f"{model}, samples per second in the second half of every phase of {PHASE_STEPS} steps; "
        "longest wait: between two steps of the phase; searches: begun in the phase."
    )
    return SimulationFigure(
        "Figure 12: a changing number of CPU workers", header, rows, panels, note
    )


def _phase(number: int, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    first, last = number * PHASE_STEPS, (number + 1) * PHASE_STEPS - 1
    rates = [f"{outcome.rate((first + last) // 2, last):,.0f}" for outcome in outcomes]
    steps = outcomes[-1].steps
    searches = steps[last].restarts - (steps[first - 1].restarts if number else -1)
    return (
        str(PHASES[number]),
        *rates,
        f"{outcomes[-1].longest_wait(max(first - 1, 0), last):.2f}",
        steps[last].mode.value,
        str(steps[last].threshold),
        str(searches),
    )


def _rates(outcome: Outcome) -> list[tuple[float, float]]:
    ends = range(WINDOW, len(outcome.steps), WINDOW)
    return [(float(end), outcome.rate(end - WINDOW, end)) for end in ends]


FIGURES: dict[str, Callable[[ServiceTimes, int], SimulationFigure]] = {
    "8": figure_8,
    "12": figure_12,
    "15a": figure_15a,
    "15b": figure_15b,
    "offload": figure_offload,
}
