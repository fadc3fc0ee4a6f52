"""What the control groups of this process allow it; both versions of them are read.

Imports nothing heavy: commands ask before anything else works.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

_Found = TypeVar("_Found")
_SYSTEM = Path("/sys")
_GROUPS = Path("/proc/self/cgroup")
# Version 1 has a number close to 2**63 where there is no limit.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, and how much of it is used now.

    Attributes:
        most: the limit.
        used: of it.
        reclaimable: of what is used, what the kernel takes back when it is needed.
        file: that has the limit.
    """

    most: int
    used: int
    reclaimable: int = 0
    file: Path | None = field(default=None, compare=False)

    @property
    def left(self) -> int:
        """What may still be used."""
        return max(self.most - self.used + min(self.reclaimable, self.used), 0)


def cpu_quota(groups: Path = _GROUPS, system: Path = _SYSTEM) -> float | None:
    """Returns the CPU quota, in CPUs; ``None`` without one."""
    return min(_read_all("cpu", _quota_v2, _quota_v1, groups, system), default=None)


def memory_limit(groups: Path = _GROUPS, system: Path = _SYSTEM) -> Limit | None:
    """Returns the limit of memory that leaves least, in bytes; ``None`` without one.

    Shared memory counts, and that of ``/dev/shm``. What the kernel keeps of files is reclaimable.
    """

    def first(group: Path) -> Limit | None:
        limit = _limit(group / "memory.limit_in_bytes", group / "memory.usage_in_bytes")
        return _with_files(limit, group, "total_inactive_file", "total_active_file")

    def second(group: Path) -> Limit | None:
        limit = _limit(group / "memory.max", group / "memory.current")
        return _with_files(limit, group, "inactive_file", "active_file")

    return _tightest(_read_all("memory", second, first, groups, system))


def out_of_memory_kills(groups: Path = _GROUPS, system: Path = _SYSTEM) -> int | None:
    """Returns how many processes the kernel has killed for want of memory; ``None``: it says not.

    Those of this process's control groups and of the groups above them.
    """

    def first(group: Path) -> int | None:
        return _number(group / "memory.oom_control", "oom_kill")

    def second(group: Path) -> int | None:
        return _number(group / "memory.events", "oom_kill")

    found = _read_all("memory", second, first, groups, system)
    return sum(found) if found else None


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
    return min(limits, key=lambda limit: limit.left, default=None)


def _with_files(limit: Limit | None, group: Path, *names: str) -> Limit | None:
    """Returns a limit of memory with what is kept of files: ``names`` of the group's statistics."""
    if limit is None:
        return None
    with contextlib.suppress(OSError, ValueError, KeyError):
        numbers = numbers_in(group / "memory.stat")
        return replace(limit, reclaimable=sum(numbers[name] for name in names))
    return limit


def numbers_in(file: Path) -> dict[str, int]:
    """Returns the numbers of a file that has a name and a number in each line.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file.
    """
    return {name: int(number) for name, number in map(str.split, file.read_text().splitlines())}


def _number(file: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return numbers_in(file).get(name)
    return None


def _limit(most: Path, used: Path) -> Limit | None:
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        limit = Limit(int(most.read_text()), int(used.read_text()), file=most)
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
