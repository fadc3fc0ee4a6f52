"""Whether this machine has what a cache may take."""

from __future__ import annotations

import os
from pathlib import Path

from fusionloader.options.cache_settings import Cache
from fusionloader.system.amounts import mib
from fusionloader.system.limits import control_groups
from fusionloader.system.limits.anonymous_memory import DEV_SHM
from fusionloader.system.limits.free_memory import dev_shm


class CacheTooLarge(ValueError):
    """The budget is more than there is, whatever else runs."""


def check(cache: Cache) -> None:
    """Raises CacheTooLarge where memory or disk are smaller than the budget, OSError without disk.

    What others use of them at the moment is not looked at: it may be free when it is needed.
    """
    if cache.memory_bytes > (most := memory_bytes()):
        raise CacheTooLarge(
            f"the cache may take {mib(cache.memory_bytes)} of memory, and this machine (or its "
            f"control group, or {DEV_SHM} where memfd_create is refused) has {mib(most)}: give it "
            "a smaller budget, or a path on a disk"
        )
    if cache.path is not None:
        _check_disk(Path(os.fspath(cache.path)), cache.disk_bytes)


def _check_disk(folder: Path, wanted: int) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"the cache cannot write to {folder}: give another path")
    system = os.statvfs(folder)
    most = system.f_blocks * system.f_frsize
    if wanted > most:
        raise CacheTooLarge(
            f"the cache may take {mib(wanted)} of {folder}, and that disk has {mib(most)}: give it "
            "a smaller budget"
        )


def memory_bytes() -> int:
    """Returns the bytes of shared memory that there may be in this process's place at most.

    They follow from the machine, its control groups, and ``/dev/shm`` where memory lies there.
    """
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (limit := control_groups.memory_limit()) is not None:
        most = min(most, limit.most)
    if (system := dev_shm()) is not None:
        most = min(most, system.f_blocks * system.f_frsize)
    return most
