"""Files of a folder, read by worker processes no faster than so many bytes a second together."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("throttle.c")


class Throttle:
    """The rate of all processes that were started within ``throttled``."""

    def __init__(self, control: mmap.mmap) -> None:
        self._control = control

    def set_rate(self, bytes_per_second: float) -> None:
        """Sets the rate from now on; 0: as fast as files come."""
        per_byte = 1e9 / bytes_per_second if bytes_per_second else 0.0
        self._control[:16] = struct.pack("=dq", per_byte, 0)


@contextlib.contextmanager
def throttled(files: Path, folder: Path) -> Iterator[Throttle]:
    """Has processes that start within wait whenever they open a file below ``files``.

    A file comes as from a line that all of them share: after those that were asked for before, and
    after as long as its bytes take. The library that waits is compiled into ``folder``.
    """
    library, control = folder / "throttle.so", folder / "throttle.control"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    control.write_bytes(bytes(mmap.PAGESIZE))
    before = dict(os.environ)
    os.environ["THROTTLE_FILES"], os.environ["THROTTLE_CONTROL"] = f"{files}/", str(control)
    os.environ["LD_PRELOAD"] = str(library)
    try:
        with open(control, "r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
            yield Throttle(memory)
    finally:
        os.environ.clear()
        os.environ.update(before)
