"""What tests wait for: until it has come, however busy the machine is.

Nothing here is to be fast. A deadline only turns a hang into a failure that says what is missing;
no test may pass or fail by how long something took. ``wait_until_gone`` counts looks instead.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

PATIENCE = 200.0  # seconds: two cores may be shared by many, and this is below a test's own limit
_SLEEP = 0.05
_OBJECT = re.compile(r"(?:memfd:|/dev/shm/)(fusionloader-\d+-[\w-]+)")


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


def wait_until_gone(pids: Collection[int], seconds: float, what: str) -> None:
    """Waits until processes have ended, for so many seconds as this one counts in short sleeps.

    A busy machine is late to wake those processes, which sleep as well, and so it is at counting.
    """
    for _ in range(round(seconds / _SLEEP)):
        if all(map(gone, pids)):
            return
        time.sleep(_SLEEP)
    left = [pid for pid in pids if not gone(pid)]
    assert not left, f"{what}: {left} still run after {seconds} s"


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
    """Shared memory of this process that only others have, or of others that anybody has.

    As ``pid of who has it: name``; the name tells who has made it. All else is not its concern:
    tests run beside one another on a machine.
    """
    mine, found = _memory_of(os.getpid()), set()
    for holder in psutil.pids():
        for inode, name in _memory_of(holder).items():
            owner = int(name.split("-")[1])
            if owner in others or (owner == os.getpid() and inode not in mine):
                found.add(f"{holder}: {name}")
    return found


def wait_until_nothing_is_left(*others: int) -> None:
    """Waits until nobody has shared memory of these processes, as ``left_behind`` finds it.

    For processes that were killed: theirs end when they notice. Iterators that tests before have
    left in errors are collected: their workers may have inherited what was closed here since.
    """
    gc.collect()
    deadline = time.monotonic() + PATIENCE
    while found := left_behind(*others):
        assert time.monotonic() < deadline, f"left behind: {found}"
        time.sleep(0.05)


def _memory_of(pid: int) -> dict[int, str]:
    """What a process has mapped and opened; nothing of one that has ended, or is another user's."""
    process, found = Path(f"/proc/{pid}"), {}
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text(errors="replace").splitlines():
            if match := _OBJECT.search(line):
                found[int(line.split()[4])] = match[1]
        for fd in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if match := _OBJECT.search(os.readlink(fd)):
                    found[fd.stat().st_ino] = match[1]
    return found
