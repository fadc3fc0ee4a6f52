"""A small disk that can be full, which training processes and the loader's processes write to."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import subprocess
from pathlib import Path

from support.warm_start import Starter

_BYTES = 4 << 20
_FILES = 200
_FILLER = "filler"


class SmallDisk:
    """A file system in memory, in a mount namespace of its own: no mount is left behind.

    Attributes:
        path: of the folder, as the processes of ``starter`` see it.
        is_real: whether it is a file system of its own; where none can be mounted it is a folder.
        starter: starts processes in the namespace.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir()
        mount = f'mount -t tmpfs -o size={_BYTES},nr_inodes={_FILES} none "$0" && exec "$@"'
        before = ["unshare", "--mount", "sh", "-c", mount, str(path)]
        self.path = path
        self.is_real = shutil.which("unshare") is not None and _succeeds([*before, "true"])
        self.starter = Starter(before if self.is_real else ())

    def seen(self, path: str | Path) -> Path:
        """Returns where this process finds a file of the namespace."""
        return Path(f"/proc/{self.starter.pid}/root{path}") if self.is_real else Path(path)

    def fill(self, *, left: int = 0, files: bool = False) -> None:
        """Takes all but some bytes of the room, or all files that can be made, until ``clear``."""
        self.clear()
        folder = self.seen(self.path)
        try:
            if files:
                for number in itertools.count():
                    (folder / f"{_FILLER}{number}").touch()
            there = os.statvfs(folder)
            nbytes = there.f_bavail * there.f_frsize - left
            if nbytes > 0:
                with open(folder / _FILLER, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, nbytes)
        except OSError as error:  # also if a loader takes the last room meanwhile
            if error.errno != errno.ENOSPC:
                raise

    def clear(self) -> None:
        """Gives back what ``fill`` has taken."""
        for file in self.seen(self.path).glob(f"{_FILLER}*"):
            file.unlink()

    def remove(self, path: str) -> None:
        """Removes a folder of the namespace."""
        shutil.rmtree(self.seen(path), ignore_errors=True)


def _succeeds(command: list[str]) -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True).returncode == 0
    return False
