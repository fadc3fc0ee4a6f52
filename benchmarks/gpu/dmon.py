"""The device's utilisation while something is measured, as nvidia-smi says it once a second."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from typing import TextIO

_COMMAND = ("nvidia-smi", "dmon", "-s", "u", "-i", "0")


class Utilisation:
    """Reads nvidia-smi from the beginning to ``close``; knows nothing where there is none."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, dict[str, float]]] = []
        self._process: subprocess.Popen[str] | None = None
        if shutil.which(_COMMAND[0]) is not None:
            self._process = subprocess.Popen(_COMMAND, stdout=subprocess.PIPE, text=True)
            assert self._process.stdout is not None
            reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
            reader.start()

    def _read(self, lines: TextIO) -> None:
        names: list[str] = []
        for line in lines:
            words = line.split()
            if words[:2] == ["#", "gpu"]:  # again and again: columns, then their units
                names = words[1:]
            elif words and words[0] != "#":
                row = dict(zip(names, words, strict=False))
                found = {name: float(row[name]) for name in row if row[name].isdigit()}
                self._seen.append((time.monotonic(), found))

    def since(self, begin: float) -> dict[str, float]:
        """Returns each column's mean in percent since a time of the monotonic clock.

        ``sm`` are the multiprocessors, ``jpg`` is the JPEG engine. A column is missing where the
        device does not have it.
        """
        seen = [found for when, found in list(self._seen) if when >= begin]
        names = {name for found in seen for name in found} - {"gpu"}
        values = {name: [found[name] for found in seen if name in found] for name in sorted(names)}
        return {name: round(sum(found) / len(found), 1) for name, found in values.items()}

    def close(self) -> None:
        """Ends nvidia-smi."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
