"""The cores of this machine, and those that are dedicated to workers."""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import torch

from fusionloader.scheduler.cores import Core, Machine, cores_for_workers
from fusionloader.system.limits.control_groups import cpu_quota

log = logging.getLogger("fusionloader.workers")

_NAMES = "fusionloader-core"
_SYSTEM = Path("/sys")


class Lease:
    """Cores dedicated to workers, until it is closed or this process has ended.

    A core is taken by binding the name of a socket in Linux's abstract namespace. Other jobs cannot
    bind that name, and the kernel releases it however the process ends.
    """

    def __init__(self, machine: Machine | None, workers: int, threads: int) -> None:
        """Takes none where there are not enough, or with ``machine=None``."""
        self._held: dict[Core, socket.socket] = {}
        taken: set[Core] = set()
        self._cores = self._choice(machine, workers, threads, taken)
        while missing := [core for core in self._cores if not self._take(core)]:
            taken.update(missing)
            self._cores = self._choice(machine, workers, threads, taken)
        for core in [core for core in self._held if core not in self._cores]:
            self._held.pop(core).close()
        if self._cores:
            log.info("CPUs %s are dedicated to workers", ", ".join(map(str, self._cores)))

    @staticmethod
    def _choice(
        machine: Machine | None, workers: int, threads: int, taken: set[Core]
    ) -> list[Core]:
        return [] if machine is None else cores_for_workers(machine, workers, threads, taken)

    def _take(self, core: Core) -> bool:
        if core in self._held:
            return True
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            name.bind(f"\0{_NAMES}-{core[0]}")
        except OSError:
            name.close()
            return False
        self._held[core] = name
        return True

    def of(self, worker: int) -> Core:
        """Returns the CPUs that a worker is to run on, nothing where the kernel chooses."""
        return self._cores[worker] if worker < len(self._cores) else ()

    def close(self) -> None:
        """Releases the cores."""
        for name in self._held.values():
            name.close()
        self._held.clear()


def lease(cpu_affinity: str, workers: int, others: int = 0) -> Lease:
    """Returns cores for workers.

    Args:
        cpu_affinity: the loader's option, ``"auto"`` or ``"off"``.
        workers: how many need a core.
        others: how many other processes of this training are busy.
    """
    # Training on a device keeps one thread of this process busy.
    on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    threads = others + (1 if on_device else torch.get_num_threads())
    return Lease(machine_here() if cpu_affinity == "auto" else None, workers, threads)


def machine_here(environ: Mapping[str, str] = os.environ) -> Machine | None:
    """Returns what this process may use, ``None`` where that cannot be known."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    try:
        rank, ranks = int(environ.get("LOCAL_RANK", 0)), int(environ.get("LOCAL_WORLD_SIZE", 1))
        alone = "LOCAL_RANK" in environ and "LOCAL_WORLD_SIZE" not in environ
        if alone or not 0 <= rank < ranks:
            return None
        cores = cores_of(frozenset(os.sched_getaffinity(0)))
        return Machine(cores, cpu_quota(), rank, ranks, idle_before())
    except (ValueError, OSError):
        return None


@functools.cache
def idle_before() -> float:
    """Returns how many CPUs of the machine were idle at the first call in this process.

    Later the load of this process's workers would count, too.
    """
    return (os.cpu_count() or 1) - os.getloadavg()[0]


@functools.lru_cache(maxsize=4)  # reads a file for each CPU
def cores_of(cpus: frozenset[int], system: Path = _SYSTEM) -> tuple[Core, ...]:
    """Returns CPUs grouped by physical core.

    Raises:
        OSError, ValueError: the system does not list them.
    """
    cores: dict[Core, None] = {}
    for cpu in sorted(cpus):
        topology = system / f"devices/system/cpu/cpu{cpu}/topology"
        siblings = _numbers((topology / "thread_siblings_list").read_text())
        cores[tuple(sorted((siblings | {cpu}) & cpus))] = None
    return tuple(cores)


def _numbers(text: str) -> set[int]:
    """Returns the numbers in a list like ``0-2,8``."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
