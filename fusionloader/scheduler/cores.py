"""Which core each CPU worker is bound to, where there are enough cores."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

Core = tuple[int, ...]
"""Numbers of the CPUs of one physical core: several with hyper-threading."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The part of a machine that a process may use.

    Attributes:
        cores: physical cores, each with the CPUs that the process may run on.
        quota: CPU quota of the container, in CPUs; ``None`` without a limit.
        rank: number of this process among the training processes of the machine.
        ranks: number of training processes of the machine.
        idle: number of CPUs of the whole machine that other processes leave idle.
    """

    cores: Sequence[Core]
    quota: float | None = None
    rank: int = 0
    ranks: int = 1
    idle: float = math.inf


def cores_for_workers(
    machine: Machine, workers: int, threads: int, taken: Collection[Core] = ()
) -> list[Core]:
    """Returns a core for each worker, or an empty list where the kernel chooses better.

    Every rank has a fixed share of the cores, so that ranks never conflict. The share must have
    cores for the training process too: a worker and training on one core, while another core is
    idle, would be slower than without binding. The same holds for a core that other processes use,
    since a bound worker cannot leave it. A quota below the number of CPUs means that there may be
    such processes outside of the container, which cannot be seen here.

    Args:
        machine: what this process may use.
        workers: number of cores to choose.
        threads: number of threads that the training process computes with.
        taken: cores that other workers are bound to.
    """
    if machine.quota is not None and machine.quota < sum(map(len, machine.cores)):
        return []
    if machine.ranks * (workers + threads) > machine.idle:
        return []
    share = len(machine.cores) // machine.ranks
    first = machine.rank * share
    free = [core for core in machine.cores[first : first + share] if core not in taken]
    if workers + threads > len(free):
        return []
    return free[-workers:] if workers else []
