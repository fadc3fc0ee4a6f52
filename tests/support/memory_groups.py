"""Control groups with a limit of memory, for processes that tests start."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.waiting import wait_until

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


def put(root, **files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class MemoryGroup:
    """A group, and what the kernel says of it."""

    def __init__(self, folder: Path, limit: str) -> None:
        self.folder, self.limit_file = folder, folder / limit

    def run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Python code in the group, with the paths of this checkout."""
        path = os.pathsep.join([os.getcwd(), os.path.join(os.getcwd(), "tests")])
        enter = f'echo $$ > {self.folder}/cgroup.procs && exec "$@"'
        return subprocess.run(
            ["sh", "-c", enter, "sh", sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    @property
    def kills(self) -> int:
        """Processes that the kernel has killed in it for want of memory."""
        name = "memory.events" if self.limit_file.name == "memory.max" else "memory.oom_control"
        lines = (self.folder / name).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def is_removed(self) -> bool:
        """Removes it, unless the kernel still has to do with a process that has ended in it."""
        try:
            self.folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True


@contextlib.contextmanager
def memory_group(nbytes: int) -> Iterator[MemoryGroup]:
    """Makes a group of the topmost one.

    Raises:
        OSError: that is not permitted here.
    """
    first = (_V1 / "memory.limit_in_bytes").exists()
    root, limit = (_V1, "memory.limit_in_bytes") if first else (_V2, "memory.max")
    group = MemoryGroup(root / f"fusionloader-test-{os.getpid()}", limit)
    group.folder.mkdir()
    try:
        group.limit_file.write_text(str(nbytes))
        if not first:
            (group.folder / "memory.swap.max").write_text("0")
        yield group
    finally:
        wait_until(group.is_removed, f"{group.folder} cannot be removed")
