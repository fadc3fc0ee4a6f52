"""Remote workers, simulated: policies on several workloads, and eight GPUs with many machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fusionloader.cli.simulator.offload import simulate_offload
from fusionloader.cli.simulator.offload_setup import (
    Network,
    OffloadOutcome,
    OffloadSetup,
    Policy,
    eight_gpus,
    fastflow_workloads,
)
from fusionloader.cli.simulator.panels import Bars, Lines, SimulationFigure
from fusionloader.cli.simulator.times import ServiceTimes

LANES = (1, 2, 4, 8, 16, 32, 64)
STEPS = 100  # that are counted
PROFILE_STEPS = 50  # of a phase of FastFlow's profile
DRAWN = 8  # remote workers of the bars, next to what is among LANES
MACHINES = (0, 1, 2, 4, 8, 16, 32, 64)
MACHINE_CORES = 7
GPU_CORES = 16  # of the machine with eight GPUs
_MACHINE_NETWORK = Network(25e9 / 8, 2e-4)


def compared(setup: OffloadSetup) -> dict[Policy, OffloadOutcome]:
    """Runs a setup with every policy."""
    return {policy: simulate_offload(replace(setup, policy=policy)) for policy in Policy}


def machine_setup(times: ServiceTimes, machines: int, policy: Policy, seed: int) -> OffloadSetup:
    """Returns eight GPUs on a machine with few cores, and so many others of 7 cores each."""
    return OffloadSetup(
        times, eight_gpus(times), policy, machines * MACHINE_CORES,
        local_workers=GPU_CORES, network=_MACHINE_NETWORK,
        batch_size=2048, tiny_batch_size=16, steps=STEPS, profile_steps=20, seed=seed,
    )  # fmt: skip


def machine_rates(
    times: ServiceTimes, policy: Policy, seed: int = 0
) -> Iterator[tuple[int, OffloadOutcome]]:
    """Runs eight GPUs with every number of machines."""
    for machines in MACHINES:
        yield machines, simulate_offload(machine_setup(times, machines, policy, seed))


def figure_offload(times: ServiceTimes, seed: int = 0) -> SimulationFigure:
    """Policies on FastFlow's workloads by the number of remote workers; then eight GPUs."""
    workloads = fastflow_workloads(times)
    drawn = min(LANES, key=lambda lanes: abs(lanes - DRAWN))
    bars: dict[str, list[float]] = {policy.value: [] for policy in Policy}
    rows: list[tuple[str, ...]] = []
    for workload in workloads:
        for lanes in LANES:
            setup = OffloadSetup(
                times, workload, Policy.NONE, lanes,
                steps=STEPS, profile_steps=PROFILE_STEPS, seed=seed,
            )  # fmt: skip
            outcomes = compared(setup)
            shares = {p: o.rate / o.setup.training_rate for p, o in outcomes.items()}
            if lanes == drawn:
                for policy, share in shares.items():
                    bars[policy.value].append(share)
            rows.append(
                (
                    workload.name,
                    f"{workload.cores:.0f}",
                    str(lanes),
                    f"{setup.best_rate / setup.training_rate:.2f}",
                    *(f"{shares[policy]:.2f}" for policy in Policy),
                    f"{outcomes[Policy.BALANCE].remote_share:.2f}",
                    f"{outcomes[Policy.FASTFLOW].remote_share:.2f}",
                )
            )
    rates = dict(machine_rates(times, Policy.BALANCE, seed))
    lines = {
        Policy.BALANCE.value: [(float(n), o.rate) for n, o in rates.items()],
        "best possible": [(float(n), o.setup.best_rate) for n, o in rates.items()],
    }
    header = (
        "workload", "cores needed", "remote workers", "best possible",
        *(policy.value for policy in Policy), "remote by balance", "by fastflow",
    )  # fmt: skip
    note = (
        "Throughput relative to training that never waits, with 7 local cores and 20 Gb/s; the "
        "last two columns are the shares of samples made remotely. "
        "See docs/scale/remote_balance.md."
    )
    names = tuple(workload.name.split()[0].rstrip(",") for workload in workloads)
    panels: list[Bars | Lines] = [
        Bars(f"{drawn} remote workers", names, bars),
        Lines(f"samples per second by machines of {MACHINE_CORES} cores; 8 GPUs", lines),
    ]
    return SimulationFigure("Remote workers: who prepares what", header, rows, panels, note)
