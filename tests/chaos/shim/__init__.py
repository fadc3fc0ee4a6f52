"""A library of our own between processes and the system: errors and a clock as a file says."""

from __future__ import annotations

import errno
import mmap
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("faulty_system.c")
_FIELDS = struct.Struct("=qiiii")
_BYTES = 4096


class FaultySystem:
    """The library, compiled into a folder, and what it does from now on.

    Attributes:
        environment: variables of processes that are to have it.
    """

    def __init__(self, folder: Path) -> None:
        library, control = folder / "faulty_system.so", folder / "faulty_system.control"
        command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE]
        subprocess.run([*command, "-ldl"], check=True)
        control.write_bytes(bytes(_BYTES))
        with open(control, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)
        self.environment = {"LD_PRELOAD": str(library), "FAULTY_CONTROL": str(control)}
        self._offset, self._watched = 0, ""

    @property
    def hits(self) -> int:
        """Calls that have failed since the last ``fail``."""
        return int(_FIELDS.unpack_from(self._memory)[4])

    def watch(self, path: str) -> None:
        """Says which files may come to fail when they are open already: those of this path."""
        self._watched = path
        self.fail(path)

    def fill(self) -> None:
        """Has the file system of the watched files be full."""
        self.fail(self._watched, writing=errno.ENOSPC)

    def fail(self, path: str, *, opening: int = 0, reading: int = 0, writing: int = 0) -> None:
        """Has calls on files fail whose path begins with ``path``, by numbers of errno."""
        name = path.encode()
        self._memory[_FIELDS.size : _FIELDS.size + len(name) + 1] = name + b"\0"
        _FIELDS.pack_into(self._memory, 0, self._offset, opening, reading, writing, 0)

    def jump(self, seconds: float) -> None:
        """Has the wall clock differ by so much from what it is."""
        self._offset = int(seconds * 1e9)
        struct.pack_into("=q", self._memory, 0, self._offset)

    def heal(self) -> None:
        """Has all calls do what they do."""
        self._offset = 0
        self.fail(self._watched)
