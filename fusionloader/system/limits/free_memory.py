"""How much memory this process may still allocate, and which limit says so."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fusionloader.system.amounts import mib
from fusionloader.system.limits import anonymous_memory, control_groups

# Of what there is, for what the processes allocate themselves: where nothing is left, the kernel
# kills one of them.
_SPARED_SHARE = 1 / 32
_MOST_SPARED = 256 << 20
_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What is free by one limit.

    Attributes:
        nbytes: that may still be allocated.
        limit: the limit, in words that follow "free by".
        remedy: what to do about it, as the beginning of a sentence.
    """

    nbytes: int
    limit: str
    remedy: str


def free_memory(*, shared: bool = True) -> FreeMemory:
    """Returns what is free by the limit that leaves least.

    That is the machine, a control group of this process or one above it, the process's address
    space, or, of ``shared`` memory, ``/dev/shm`` where it has to lie there. Shared memory counts in
    all of them. What the kernel keeps of files counts as free. A part of what is free is left to
    what processes allocate themselves.
    """
    limits: list[FreeMemory] = [*_limits_of_processes(), *(_of_dev_shm() if shared else ())]
    return min(limits, key=lambda each: each.nbytes)


def _limits_of_processes() -> Iterator[FreeMemory]:
    import resource  # of POSIX; this module is imported elsewhere, too

    yield _of_machine()
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


def _of_dev_shm() -> Iterator[FreeMemory]:
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
    """Returns how large and how full ``/dev/shm`` is, where shared memory has to lie there.

    ``None`` where it need not, or where ``/dev/shm`` has no size.
    """
    if not anonymous_memory.lies_in_dev_shm():
        return None
    try:
        found = os.statvfs(anonymous_memory.DEV_SHM)
    except OSError:
        return None  # memory cannot be made, either: that error says why
    return found if found.f_blocks else None


def _of_machine() -> FreeMemory:
    words = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())

    def amount(name: str) -> int:
        return int(words[name].split()[0]) << 10

    # Swap counts: shared memory goes there, too.
    free = amount("MemAvailable") + amount("SwapFree") - _spared(amount("MemTotal"))
    return FreeMemory(max(free, 0), "this machine's memory (/proc/meminfo)", "End other processes")


def _spared(most: int) -> int:
    return min(int(most * _SPARED_SHARE), _MOST_SPARED)


def _address_space() -> int:
    return int(_STATM.read_text().split()[0]) * mmap.PAGESIZE
