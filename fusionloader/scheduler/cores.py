"""Which core each CPU worker has for itself, where there are enough."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

Core = tuple[int, ...]
"""The CPUs, by number, of one physical core: several with hyper-threading."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a process may use of its machine.

    Attributes:
        cores: with those of their CPUs that it may run on.
        quota: processors' worth of time that its container has, ``None`` where that has no limit.
        rank: its number among the training processes of the machine.
        ranks: how many these are.
        idle: CPUs of the whole machine that others leave idle.
    """

    cores: Sequence[Core]
    quota: float | None = None
    rank: int = 0
    ranks: int = 1
    idle: float = math.inf


def cores_for_workers(
    machine: Machine, workers: int, threads: int, taken: Collection[Core] = ()
) -> list[Core]:
    """Returns a core for each worker, or none at all where the kernel had better choose.

    Every rank has a share of the cores, so that siblings never meet, whatever they ask for. In it
    there have to be cores for the training process too: worker and training on one core, while
    another one is idle, would be worse than no choice. So would be a core that others use, which a
    bound worker cannot leave: a quota below the number of CPUs says that there may be some, whom
    nobody here sees.

    Args:
        machine: where this is.
        workers: of this process, that want a core.
        threads: with which the training process computes.
        taken: cores that other workers have.
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
