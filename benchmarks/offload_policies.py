"""Who prepares what with remote workers: policies compared in the simulator. Nothing is measured.

Five questions: each policy on FastFlow's workloads, by the number of remote workers and the
network; balance by its only parameter; FastFlow's share as its paper and as its code have it; eight
GPUs and many machines; and how much slower than local workers alone a policy can be, with
networks, costs and workers drawn at random, most of which do not suit remote workers.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.study import publish
from fusionloader.cli.measure.report import announce
from fusionloader.cli.simulator.offload import simulate_offload
from fusionloader.cli.simulator.offload_figure import LANES, compared, machine_rates
from fusionloader.cli.simulator.offload_setup import (
    FAST,
    SLOW,
    Network,
    OffloadSetup,
    OffloadShare,
    Policy,
    Transport,
    Workload,
    fastflow_workloads,
)
from fusionloader.cli.simulator.times import ServiceTimes, load

TIMES = Path(__file__).parent / "service_times" / "torchvision-randaugment.json"
NETWORKS = {"20 Gb/s": FAST, "1 Gb/s": SLOW}
LOWS = (1, 2, 4, 7, 10)
STEPS = 200  # that are counted
HEADER = (
    "network", "workload", "cores needed", "remote workers", "best possible",
    *(policy.value for policy in Policy), "remote by balance", "by fastflow",
)  # fmt: skip


def policies(times: ServiceTimes, seed: int) -> list[tuple[str, ...]]:
    """Throughput relative to training that never waits."""
    rows = []
    for name, network in NETWORKS.items():
        for workload in fastflow_workloads(times):
            for lanes in LANES:
                setup = OffloadSetup(
                    times, workload, Policy.NONE, lanes, network=network, steps=STEPS, seed=seed
                )
                found = compared(setup)
                ideal = setup.training_rate
                rows.append(
                    (
                        name,
                        workload.name,
                        f"{workload.cores:.1f}",
                        str(lanes),
                        f"{setup.best_rate / ideal:.3f}",
                        *(f"{found[policy].rate / ideal:.3f}" for policy in Policy),
                        f"{found[Policy.BALANCE].remote_share:.2f}",
                        f"{found[Policy.FASTFLOW].remote_share:.2f}",
                    )
                )
            announce(f"{name}, {workload.name}")
    return rows


def summary(rows: list[tuple[str, ...]]) -> dict[str, dict[str, float]]:
    """Returns of each policy the least and the median of its rate over none's, and the best's."""
    found = {}
    at = {name: column for column, name in enumerate(HEADER)}
    for policy in Policy:
        rates = [float(row[at[policy.value]]) for row in rows]
        over_none = [rate / float(row[at["none"]]) for rate, row in zip(rates, rows, strict=True)]
        of_best = [
            rate / float(row[at["best possible"]]) for rate, row in zip(rates, rows, strict=True)
        ]
        found[policy.value] = {
            "least_over_none": min(over_none),
            "median_over_none": statistics.median(over_none),
            "least_of_best": min(of_best),
            "median_of_best": statistics.median(of_best),
        }
    return found


def by_low(times: ServiceTimes, seed: int) -> dict[str, dict[str, float]]:
    """Balance, of the best possible: least over workloads, networks and remote workers."""
    found = {}
    for low in LOWS:
        outcomes = [
            simulate_offload(
                OffloadSetup(
                    times,
                    workload,
                    Policy.BALANCE,
                    lanes,
                    network=network,
                    low=low,
                    steps=STEPS,
                    seed=seed,
                )
            )
            for network in NETWORKS.values()
            for workload in fastflow_workloads(times)
            for lanes in (4, 64)
        ]
        found[str(low)] = {
            "least_of_best": min(each.rate / each.setup.best_rate for each in outcomes),
            "mean_of_best": statistics.mean(each.rate / each.setup.best_rate for each in outcomes),
            "mean_remote_share": statistics.mean(each.remote_share for each in outcomes),
        }
    return found


def by_share(times: ServiceTimes, seed: int) -> dict[str, dict[str, float]]:
    """FastFlow with either share, of the best possible."""
    found = {}
    for share in OffloadShare:
        outcomes = [
            simulate_offload(
                OffloadSetup(
                    times,
                    workload,
                    Policy.FASTFLOW,
                    lanes,
                    network=network,
                    share=share,
                    steps=STEPS,
                    seed=seed,
                )
            )
            for network in NETWORKS.values()
            for workload in fastflow_workloads(times)
            for lanes in (2, 4, 8, 16)
        ]
        found[share.value] = {
            "least_of_best": min(each.rate / each.setup.best_rate for each in outcomes),
            "mean_of_best": statistics.mean(each.rate / each.setup.best_rate for each in outcomes),
            "mean_remote_share": statistics.mean(each.remote_share for each in outcomes),
        }
    return found


def eight_gpus(times: ServiceTimes, seed: int) -> list[dict[str, Any]]:
    """Samples per second by the number of machines."""
    rows = []
    policies = (Policy.BALANCE, Policy.FASTFLOW)
    rates = {policy: dict(machine_rates(times, policy, seed)) for policy in policies}
    for machines, outcome in rates[Policy.BALANCE].items():
        row = {"machines": machines, "best_possible": outcome.setup.best_rate}
        rows.append({**row, **{p.value: rates[p][machines].rate for p in policies}})
    return rows


def at_random(times: ServiceTimes, count: int, seed: int) -> dict[str, list[float]]:
    """Rates over those of local workers alone, sorted."""
    source = random.Random(seed)
    policies = (Policy.BALANCE, Policy.FASTFLOW, Policy.ALL)
    over: dict[str, list[float]] = {policy.value: [] for policy in policies}
    for _ in range(count):
        workload = Workload("", source.uniform(1, 40), source.choice([3e4, 150528, 6e5]))
        network = Network(10 ** source.uniform(6.5, 9.5), 10 ** source.uniform(-4, 0))
        transport = Transport(10 ** source.uniform(-5, -2), 10 ** source.uniform(-10.5, -8.5))
        workers, lanes = source.choice([1, 2, 4, 8]), source.choice([1, 2, 4, 16, 64])
        in_flight = source.choice([2, 4, 8, 16])
        setup = OffloadSetup(
            times, workload, Policy.NONE, lanes, local_workers=workers, network=network,
            transport=transport, in_flight=in_flight, steps=STEPS, seed=seed,
        )  # fmt: skip
        alone = simulate_offload(setup).rate
        for policy in policies:
            outcome = simulate_offload(replace(setup, policy=policy))
            over[policy.value].append(outcome.rate / alone)
    return {name: sorted(ratios) for name, ratios in over.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=Path, default=TIMES, help="service times")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (0)")
    parser.add_argument("--random", type=int, default=150, help="setups drawn at random (150)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    times = load(options.times)
    rows = policies(times, options.seed)
    announce("parameters, eight GPUs, random setups")
    figures: dict[str, Any] = {
        "simulated": True,
        "summary": summary(rows),
        "balance_by_low_of_14_in_flight": by_low(times, options.seed),
        "fastflow_by_share": by_share(times, options.seed),
        "eight_gpus": eight_gpus(times, options.seed),
        "random_over_none": at_random(times, options.random, options.seed),
    }
    publish(options, HEADER, rows, **figures)
    for policy, found in figures["summary"].items():
        print(policy, {name: round(value, 3) for name, value in found.items()})
    for policy, ratios in figures["random_over_none"].items():
        print(f"{policy}, at random: least {ratios[0]:.3f}, median {statistics.median(ratios):.3f}")
    print("SIMULATED: nothing of this was measured")


if __name__ == "__main__":
    main()
