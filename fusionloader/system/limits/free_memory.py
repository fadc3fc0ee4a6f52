"""How much memory this process may still allocate, by which limit, and out-of-memory kills."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fusionloader.system.amounts import mib
from fusionloader.system.limits import anonymous_memory, control_groups

# Part of a limit that is left to the processes' own allocations: the kernel kills a process when
# nothing is left.
_SPARED_SHARE = 1 / 32
_MOST_SPARED = 256 << 20
_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")
_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The free memory under one limit.

    Attributes:
        nbytes: bytes that may still be allocated.
        limit: text for the limit, to follow "free by".
        remedy: what to do about it, as the beginning of a sentence.
    """

    nbytes: int
    limit: str
    remedy: str


def free_memory(*, shared: bool = True) -> FreeMemory:
    """Returns the free memory under the tightest limit.

    Limits are the machine, the control groups of this process and their ancestors, the address
    space, and, for ``shared`` memory that must lie in ``/dev/shm``, its size. Shared memory counts
    in all of them, and the kernel's cache of files counts as free. A part of the free memory is
    left to the processes' own allocations.
    """
    limits: list[FreeMemory] = [*_process_limits(), *(_dev_shm_limit() if shared else ())]
    return min(limits, key=lambda each: each.nbytes)


def _process_limits() -> Iterator[FreeMemory]:
    import resource  # only on POSIX; other systems import this module too

    yield _machine_limit()
    group = control_groups.memory_limit()
    if group is not None:
        yield FreeMemory(
            max(group.left - _spared(group.most), 0),
            f"the memory limit of this process's control group ({group.file}: {mib(group.most)}, "
            f"of which {mib(_spared(group.most))} are left to the processes themselves)",
            "Raise it (docker run --memory=..., resources.limits.memory in Kubernetes, --mem in "
            "Slurm, MemoryMax= in systemd)",
        )
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        yield FreeMemory(
            max(most - _address_space(), 0),
            f"the limit of this process's address space (RLIMIT_AS: {mib(most)})",
            "Raise it (ulimit -v unlimited)",
        )


def _dev_shm_limit() -> Iterator[FreeMemory]:
    system = dev_shm()
    if system is not None:
        folder = anonymous_memory.DEV_SHM
        yield FreeMemory(
            system.f_bavail * system.f_frsize,
            f"the size of {folder} ({mib(system.f_blocks * system.f_frsize)}), where shared memory "
            "lies because the system call memfd_create is refused here",
            f"Make {folder} larger (docker run --shm-size=..., an emptyDir of medium Memory in "
            f"Kubernetes, mount -o remount,size=... {folder}), allow memfd_create",
        )


def dev_shm() -> os.statvfs_result | None:
    """Returns size and use of ``/dev/shm`` if shared memory must lie there.

    ``None`` if it need not, or if ``/dev/shm`` has no size.
    """
    if not anonymous_memory.lies_in_dev_shm():
        return None
    try:
        found = os.statvfs(anonymous_memory.DEV_SHM)
    except OSError:
        return None  # making memory fails too, with an error that says why
    return found if found.f_blocks else None


def _machine_limit() -> FreeMemory:
    words = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())

    def amount(name: str) -> int:
        return int(words[name].split()[0]) << 10

    # Swap counts, because shared memory can be swapped out.
    free = amount("MemAvailable") + amount("SwapFree") - _spared(amount("MemTotal"))
    return FreeMemory(max(free, 0), "this machine's memory (/proc/meminfo)", "End other processes")


def _spared(most: int) -> int:
    return min(int(most * _SPARED_SHARE), _MOST_SPARED)


def _address_space() -> int:
    return int(_STATM.read_text().split()[0]) * mmap.PAGESIZE


# ---- the out-of-memory killer ------------------------------------------------------------------


class OutOfMemoryKills:
    """Counts processes that the kernel's out-of-memory killer has ended since construction.

    The counts are those of this process's control groups if they exist, else those of the machine.
    """

    def __init__(self) -> None:
        self._before = _count_kills()
        self._explained = 0

    def explain(self) -> str:
        """Returns a text on a process that was killed; empty if all kills are explained."""
        killed = _count_kills() - self._before
        if killed <= self._explained:
            return ""
        self._explained += 1
        found = free_memory(shared=False)
        return (
            f"the kernel's out-of-memory killer has ended {killed} of the processes that share "
            f"{found.limit}. {found.remedy}, or lower num_workers, batch_size or prefetch_factor"
        )


def _count_kills() -> int:
    counts = control_groups.out_of_memory_kills()
    if counts is not None:
        return counts
    with contextlib.suppress(OSError, ValueError):
        return control_groups.numbers_in(_VMSTAT).get("oom_kill", 0)
    return 0
