"""What tests wait for: until it has come, however busy the machine is.

Nothing here is to be fast. A deadline only turns a hang into a failure that says what is missing;
no test may pass or fail by how long something took.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PATIENCE = 200.0  # seconds: two cores may be shared by many, and this is below a test's own limit
_OBJECT = re.compile(r"fusionloader-(\d+)-.*")


def wait_until(
    condition: Callable[[], object],
    otherwise: str = "it has not come to that",
    seconds: float = PATIENCE,
    pause: float = 0.01,
) -> None:
    """Waits; ``pause`` is longer where to ask takes the time of what is waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{otherwise} after {seconds:.0f} s"
        time.sleep(pause)


class Flag:
    """A file that processes wait for; one that is killed while it waits harms nobody else.

    After that, to set an ``Event`` of multiprocessing would wait for the dead.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def set(self) -> None:
        self._path.touch()

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)

    def wait(self) -> None:
        wait_until(self._path.exists, f"{self._path.name} is not set")


def gone(pid: int) -> bool:
    """Whether a process has ended; nobody may have asked for its exit code yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def children_that_run(name: str) -> list[psutil.Process]:
    """This process's children in whose command a name comes up; the dead have none."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if name in " ".join(child.cmdline()):
                found.append(child)
    return found


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process have taken a SIGSTOP, which comes to one after the other."""
    states = [
        path.read_text().rpartition(")")[2].split()[0]
        for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


def left_behind(*others: int) -> set[str]:
    """Shared-memory objects with names that this process has made, or others that it started.

    Those of all others are not its concern: tests run beside one another on a machine.
    """
    found = {name: _OBJECT.fullmatch(name) for name in os.listdir("/dev/shm")}
    owners = {name: int(match[1]) for name, match in found.items() if match}
    return {name for name, owner in owners.items() if owner in (os.getpid(), *others)}
