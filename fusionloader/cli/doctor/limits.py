"""What may run out: shared memory, memory, open files, processes."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from fusionloader.cli.doctor.check import Check, gigabytes, warn_if
from fusionloader.system.limits.control_groups import memory_limit, process_limit
from fusionloader.system.limits.free_memory import FreeMemory, free_memory
from fusionloader.system.limits.processors import cores_allowed

# Eight slots of 256 float32 images of 224 x 224: what a usual training keeps in flight.
COMFORTABLE_SHARED = 1.5e9
LEAST_SHARED = 64e6
COMFORTABLE_MEMORY = 2e9
_MANY = "4096"


def checks() -> Iterator[Check]:
    """Yields one for each of them."""
    yield shared_memory(free_memory())
    yield memory()
    yield open_files()
    yield processes()


def shared_memory(found: FreeMemory) -> Check:
    """The memory that batches lie in, of ``/dev/shm`` only where memfd_create is refused."""
    if found.nbytes < LEAST_SHARED:
        value = f"{found.nbytes / 1e6:.0f} MB free by {found.limit}, too little for a batch"
        return Check("shared memory", value, "fail", found.remedy)
    value = f"{gigabytes(found.nbytes)} free by {found.limit}"
    return warn_if(found.nbytes < COMFORTABLE_SHARED, "shared memory", value, found.remedy)


def memory() -> Check:
    """What the container may use; shared memory counts, too."""
    limit = memory_limit()
    if limit is None:
        return Check("memory limit", "none")
    return warn_if(
        limit.left < COMFORTABLE_MEMORY,
        "memory limit",
        f"{gigabytes(limit.most)}, {gigabytes(limit.left)} free",
        "workers are killed beyond it: docker run --memory=16g, or fewer workers; "
        "shared memory counts",
    )


def open_files() -> Check:
    """Whether workers' pipes and memory have descriptors enough."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return warn_if(
        not _is_unlimited(most) and most < files_needed(),
        "open files",
        f"{_limit(most)} allowed, training with two loaders needs about {files_needed()}",
        f"ulimit -n {_MANY} (docker run --ulimit nofile={_MANY})",
    )


def files_needed() -> int:
    """Three for each worker of two loaders, one worker a core, and what else a training opens."""
    return 128 + 2 * 3 * cores_allowed()


def processes() -> Check:
    """Whether workers may start; threads count."""
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    group, needed = process_limit(), 64 + 4 * cores_allowed()
    room = [] if _is_unlimited(most) else [most]
    room += [] if group is None else [group.most - group.used]
    left = min(room, default=resource.RLIM_INFINITY)
    return warn_if(
        not _is_unlimited(left) and left < needed,
        "processes",
        f"{_limit(left)} allowed, threads included",
        f"ulimit -u {_MANY} (docker run --pids-limit={_MANY})",
    )


def _is_unlimited(limit: int) -> bool:
    return limit == resource.RLIM_INFINITY


def _limit(limit: int) -> str:
    return "any number" if _is_unlimited(limit) else str(limit)
