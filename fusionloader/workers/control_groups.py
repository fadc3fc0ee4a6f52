"""What the control groups of this process allow it; both versions of them are read.

Imports nothing heavy: commands ask before anything else works.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_Found = TypeVar("_Found")
_SYSTEM = Path("/sys")
_GROUPS = Path("/proc/self/cgroup")
# Version 1 has a number close to 2**63 where there is no limit.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, and how much of it is used now."""

    most: int
    used: int


def cpu_quota(groups: Path = _GROUPS, system: Path = _SYSTEM) -> float | None:
    """Returns the CPU quota, in CPUs; ``None`` without one."""
    return min(_read_all("cpu", _quota_v2, _quota_v1, groups, system), default=None)


def memory_limit(groups: Path = _GROUPS, system: Path = _SYSTEM) -> Limit | None:
    """Returns the limit of memory that leaves least, in bytes; ``None`` without one.

    What is in ``/dev/shm`` counts.
    """

    def first(group: Path) -> Limit | None:
        return _limit(group / "memory.limit_in_bytes", group / "memory.usage_in_bytes")

    def second(group: Path) -> Limit | None:
        return _limit(group / "memory.max", group / "memory.current")

    return _tightest(_read_all("memory", second, first, groups, system))


def process_limit(groups: Path = _GROUPS, system: Path = _SYSTEM) -> Limit | None:
    """Returns the limit of processes and threads that leaves least; ``None`` without one."""

    def read(group: Path) -> Limit | None:
        return _limit(group / "pids.max", group / "pids.current")

    return _tightest(_read_all("pids", read, read, groups, system))


def _read_all(
    controller: str,
    second: Callable[[Path], _Found | None],
    first: Callable[[Path], _Found | None],
    groups: Path,
    system: Path,
) -> list[_Found]:
    """Returns the limits of this process's groups of a controller, and of their ancestors."""
    found: list[_Found] = []
    with contextlib.suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                found += _of_ancestors(system / "fs/cgroup", path, second)
            elif controller in controllers.split(","):
                found += _of_ancestors(system / "fs/cgroup" / controllers, path, first)
    return found


def _of_ancestors(root: Path, path: str, read: Callable[[Path], _Found | None]) -> list[_Found]:
    """Returns the limits of a group and of its ancestors.

    In a container the path may be the host's and not exist: then the root is the group.
    """
    group = root / path.lstrip("/")
    found = [read(folder) for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return [limit for limit in found if limit is not None]


def _tightest(limits: list[Limit]) -> Limit | None:
    return min(limits, key=lambda limit: limit.most - limit.used, default=None)


def _limit(most: Path, used: Path) -> Limit | None:
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        limit = Limit(int(most.read_text()), int(used.read_text()))
        return limit if limit.most < _NO_LIMIT else None
    return None


def _quota_v2(group: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _quota_v1(group: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota = int((group / "cpu.cfs_quota_us").read_text())
        return quota / int((group / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    return None
