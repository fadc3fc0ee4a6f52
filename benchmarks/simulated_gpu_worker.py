"""The GPU worker's schedulers in the simulator. Nothing is measured on a device.

Two questions: how long may a group of tiny-batches take beside training, with launches, speeds,
workers and batches of many kinds; and how good is the chosen mode (off, temporal or spatial
sharing) when training, GPU worker and sharing are drawn at random?
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.study import publish
from fusionloader.cli.measure.report import announce
from fusionloader.cli.simulator.loader import simulate
from fusionloader.cli.simulator.setup import BOTH, CPU_ONLY, SimulationSetup, Variant
from fusionloader.cli.simulator.times import GpuTimes, ServiceTimes, load
from fusionloader.scheduler import group_size
from fusionloader.scheduler.gpu_sharing import Mode

TIMES = Path(__file__).parent / "service_times" / "native-randaugment.json"
LIMITS = (0.5, 1.0, 2.0)  # mini-batches' times that a group may take beside training
HEADER = ("limit", "least of 0.5", "median", "most", "least of CPU only")
# (launch milliseconds, speed of CPU workers, workers, in flight, batch size, speed of training)
GRIDS = (
    ((1, 4), (0.5, 1, 3, 12), (1, 4, 8), (2, 4, 16), (128,), (1.5,)),
    ((2, 8), (1, 3, 12), (1, 2, 4, 8), (2, 4, 16), (64, 256), (3.0,)),
)


def times_with(
    times: ServiceTimes, *, launch: float, gpu_speed: float, beside: float, rate: float
) -> ServiceTimes:
    """Returns measured times of a CPU worker with a GPU worker and a training that are assumed.

    ``launch`` is in seconds, ``gpu_speed`` relative to a CPU worker, half of it by size. ``rate``
    has the samples per second of training.
    """
    half = times.mean_seconds / gpu_speed / 2
    gpu = GpuTimes(launch, 0.0046, half, half / times.mean_bytes, beside, beside)
    return replace(times, gpu=gpu, models={"model": rate})


def grid(times: ServiceTimes, seed: int) -> Iterator[SimulationSetup]:
    for values in GRIDS:
        for launch, speed, workers, in_flight, size, training in product(*values):
            rate = training * workers / times.mean_seconds
            made = times_with(times, launch=launch / 1e3, gpu_speed=speed, beside=0.7, rate=rate)
            yield SimulationSetup(
                made, BOTH, workers, "model", 220, size, in_flight=in_flight, seed=seed
            )


def by_limit(times: ServiceTimes, seed: int) -> tuple[list[tuple[str, ...]], list[dict[str, Any]]]:
    """Returns rows of the throughput by limit, and the figures of each setup."""
    cases: list[dict[str, Any]] = []
    for setup in grid(times, seed):
        rates = {}
        for limit in LIMITS:
            with patch.dict(group_size._DELAY_SHARE, {True: limit}):
                rates[str(limit)] = simulate(setup).rate(120)
        gpu = setup.times.gpu
        cases.append(
            {
                "launch_milliseconds": gpu.launch * 1e3,
                "gpu_speed": round(times.mean_seconds / (2 * gpu.sample), 2),
                "workers": setup.cpu_workers,
                "in_flight": setup.in_flight,
                "batch_size": setup.batch_size,
                "samples_per_second": rates,
                "cpu_only": simulate(replace(setup, variant=CPU_ONLY)).rate(120),
            }
        )
    rows = []
    for name in map(str, LIMITS):
        of_limit = [case["samples_per_second"][name] for case in cases]
        first = [case["samples_per_second"][str(LIMITS[0])] for case in cases]
        ratios = [rate / other for rate, other in zip(of_limit, first, strict=True)]
        alone = min(rate / case["cpu_only"] for rate, case in zip(of_limit, cases, strict=True))
        found = min(ratios), statistics.median(ratios), max(ratios), alone
        rows.append((name, *(f"{each:.3f}" for each in found)))
    return rows, cases


def chosen_modes(times: ServiceTimes, count: int, seed: int) -> dict[str, Any]:
    """Returns rates of the mode chosen after 36 steps, relative to off and to the best mode."""
    source = random.Random(seed)
    over_off, of_best = [], []
    for _ in range(count):
        workers, gpu_speed = source.randint(2, 14), source.uniform(0.5, 20)
        made = times_with(
            times,
            launch=source.uniform(0, 16) * times.mean_seconds / gpu_speed,
            gpu_speed=gpu_speed,
            beside=source.uniform(0.3, 1),
            rate=source.uniform(0.3, 2.5) * workers / times.mean_seconds,
        )
        setup = SimulationSetup(
            made, BOTH, workers, "model", 160, 128, in_flight=2 * workers, seed=seed
        )
        rates = {
            mode: simulate(replace(setup, variant=Variant(mode.value, mode))).rate(80)
            for mode in Mode
        }
        chosen = rates[simulate(replace(setup, iterations=37)).steps[36].mode]
        over_off.append(chosen / rates[Mode.OFF])
        of_best.append(chosen / max(rates.values()))
    return {
        "trainings": count,
        "least_over_off": min(over_off),
        "mean_of_best": statistics.mean(of_best),
        "least_of_best": min(of_best),
        "over_off": sorted(over_off),
        "of_best": sorted(of_best),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=Path, default=TIMES, help="service times")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (0)")
    parser.add_argument("--random", type=int, default=250, help="trainings drawn at random (250)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    times = load(options.times)
    rows, cases = by_limit(times, options.seed)
    announce("trainings drawn at random")
    modes = chosen_modes(times, options.random, options.seed)
    publish(options, HEADER, rows, simulated=True, by_limit=cases, chosen_modes=modes)


if __name__ == "__main__":
    main()
