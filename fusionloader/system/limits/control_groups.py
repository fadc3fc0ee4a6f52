"""Reads the limits of this process's control groups, of both versions.

It imports nothing heavy, because commands use it before anything else works.
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
# Without a limit, version 1 has a number close to 2**63.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and its current use, in bytes or processes.

    Attributes:
        most: the limit.
        used: amount in use.
        reclaimable: part of ``used`` that the kernel reclaims when it is needed.
        file: file that the limit was read from.
    """

    most: int
    used: int
    reclaimable: int = 0
    file: Path | None = field(default=None, compare=False)

    @property
    def left(self) -> int:
        """Amount that may still be used."""
        return max(self.most - self.used + min(self.reclaimable, self.used), 0)


def cpu_quota(groups: Path = _GROUPS, system: Path = _SYSTEM) -> float | None:
    """Returns the CPU quota, in CPUs; ``None`` without one."""
    return min(_read_all("cpu", _quota_v2, _quota_v1, groups, system), default=None)


def throttling_files(groups: Path = _GROUPS, system: Path = _SYSTEM) -> list[Path]:
    """Returns the files that count how often the CPU quota has stopped this process's groups.

    Both versions have ``nr_periods`` and ``nr_throttled`` in them.
    """

    def find(group: Path) -> Path | None:
        file = group / "cpu.stat"
        return file if _number(file, "nr_throttled") is not None else None

    return _read_all("cpu", find, find, groups, system)


def memory_limit(groups: Path = _GROUPS, system: Path = _SYSTEM) -> Limit | None:
    """Returns the tightest memory limit, in bytes; ``None`` without one.

    Shared memory counts as used, also in ``/dev/shm``. The kernel's cache of files is reclaimable.
    """

    def first(group: Path) -> Limit | None:
        limit = _limit(group / "memory.limit_in_bytes", group / "memory.usage_in_bytes")
        return _with_files(limit, group, "total_inactive_file", "total_active_file")

    def second(group: Path) -> Limit | None:
        limit = _limit(group / "memory.max", group / "memory.current")
        return _with_files(limit, group, "inactive_file", "active_file")

    return _tightest(_read_all("memory", second, first, groups, system))


def out_of_memory_kills(groups: Path = _GROUPS, system: Path = _SYSTEM) -> int | None:
    """Returns the number of out-of-memory kills; ``None`` if the kernel does not report it.

    It counts kills in this process's control groups and their ancestors.
    """

    def first(group: Path) -> int | None:
        return _number(group / "memory.oom_control", "oom_kill")

    def second(group: Path) -> int | None:
        return _number(group / "memory.events", "oom_kill")

    found = _read_all("memory", second, first, groups, system)
    return max(found, default=None)  # a group counts those of the groups in it, too


def process_limit(groups: Path = _GROUPS, system: Path = _SYSTEM) -> Limit | None:
    """Returns the tightest limit of processes and threads; ``None`` without one."""

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
    """Returns the limits of this process's groups for a controller, and of their ancestors."""
    found: list[_Found] = []
    with contextlib.suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                found += _read_ancestors(system / "fs/cgroup", path, second)
            elif controller in controllers.split(","):
                found += _read_ancestors(system / "fs/cgroup" / controllers, path, first)
    return found


def _read_ancestors(root: Path, path: str, read: Callable[[Path], _Found | None]) -> list[_Found]:
    """Returns the limits of a group and its ancestors.

    In a container the path may be the host's, which does not exist here; the root has the limits.
    """
    group = root / path.lstrip("/")
    found = [read(folder) for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return [limit for limit in found if limit is not None]


def _tightest(limits: list[Limit]) -> Limit | None:
    return min(limits, key=lambda limit: limit.left, default=None)


def _with_files(limit: Limit | None, group: Path, *names: str) -> Limit | None:
    """Adds to a memory limit the kernel's cache of files: ``names`` in the group's statistics."""
    if limit is None:
        return None
    with contextlib.suppress(OSError, ValueError, KeyError):
        numbers = numbers_in(group / "memory.stat")
        return replace(limit, reclaimable=sum(numbers[name] for name in names))
    return limit


def numbers_in(file: Path) -> dict[str, int]:
    """Parses a file that has a name and a number in each line.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has another format.
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
