"""Dedicates cores of this machine to workers."""

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
    """Cores dedicated to workers, until ``close`` or the end of this process.

    A core is taken by binding a socket's name in Linux's abstract namespace. Other jobs cannot bind
    the same name, and the kernel releases it when the process ends.
    """

    def __init__(self, machine: Machine | None, workers: int, threads: int) -> None:
        """Takes no cores if there are not enough, or if ``machine`` is ``None``."""
        self._held: dict[Core, socket.socket] = {}
        taken: set[Core] = set()
        self._cores = self._choice(machine, workers, threads, taken)
        while missing := [core for core in self._cores if not self._take(core)]:
            # Other jobs have these: choose again without them, and keep those taken so far.
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

    def cpus(self, worker: int) -> Core:
        """Returns the CPUs that a worker should run on; empty if the kernel should choose."""
        return self._cores[worker] if worker < len(self._cores) else ()

    def close(self) -> None:
        for name in self._held.values():
            name.close()
        self._held.clear()


def lease(cpu_affinity: str, workers: int, others: int = 0) -> Lease:
    """Leases cores for workers.

    Args:
        cpu_affinity: the loader's option, ``"auto"`` or ``"off"``.
        workers: number of workers.
        others: number of other busy processes of this training.
    """
    # Training on a device keeps one thread of this process busy.
    on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    threads = others + (1 if on_device else torch.get_num_threads())
    return Lease(read_machine() if cpu_affinity == "auto" else None, workers, threads)


def read_machine(environ: Mapping[str, str] = os.environ) -> Machine | None:
    """Returns the cores and CPU quota of this process; ``None`` if they are unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    try:
        rank, ranks = int(environ.get("LOCAL_RANK", 0)), int(environ.get("LOCAL_WORLD_SIZE", 1))
        alone = "LOCAL_RANK" in environ and "LOCAL_WORLD_SIZE" not in environ
        if alone or not 0 <= rank < ranks:
            return None
        cores = read_cores(frozenset(os.sched_getaffinity(0)))
        return Machine(cores, cpu_quota(), rank, ranks, idle_before())
    except (ValueError, OSError):
        return None


@functools.cache
def idle_before() -> float:
    """Returns the number of idle CPUs of the machine at the first call in this process.

    Later, the load would include this process's own workers.
    """
    return (os.cpu_count() or 1) - os.getloadavg()[0]


@functools.lru_cache(maxsize=4)  # reads a file for each CPU
def read_cores(cpus: frozenset[int], system: Path = _SYSTEM) -> tuple[Core, ...]:
    """Returns ``cpus`` grouped by physical core.

    Raises:
        OSError, ValueError: ``system`` does not list them.
    """
    cores: dict[Core, None] = {}
    for cpu in sorted(cpus):
        topology = system / f"devices/system/cpu/cpu{cpu}/topology"
        siblings = _numbers((topology / "thread_siblings_list").read_text())
        cores[tuple(sorted((siblings | {cpu}) & cpus))] = None
    return tuple(cores)


def _numbers(text: str) -> set[int]:
    """Parses a list of numbers such as ``0-2,8``."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
