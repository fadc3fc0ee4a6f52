"""What the workers of any loader get of the processors, torch's included."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fusionloader.loader import FusionLoader
from fusionloader.observe.statistics.processor_use import ProcessorUse, ProcessorWatch
from fusionloader.options.aliases import AnyLoader

_PROCESSES = Path("/proc")


class LoaderProcessors:
    """Measures from its making on, while training waits for a loader."""

    def __init__(self, loader: AnyLoader) -> None:
        self._loader = loader
        self._watch = ProcessorWatch()
        self._watch.epoch_began()
        self._before = loader.stats().processors if isinstance(loader, FusionLoader) else None
        self._children = _times_of_descendants()

    def use(self) -> ProcessorUse:
        """Returns what was got until now.

        Torch's workers count nothing: their processes are looked at, as if they were always busy.
        """
        loader = self._loader
        if self._before is not None and isinstance(loader, FusionLoader):
            return loader.stats().processors.since(self._before)
        cpu = delay = 0.0
        for process, (cpu_now, delay_now) in _times_of_descendants().items():
            cpu_before, delay_before = self._children.get(process, (0.0, 0.0))
            cpu, delay = cpu + cpu_now - cpu_before, delay + delay_now - delay_before
        seconds = self._watch.use(0, 0, 0).seconds
        return self._watch.use(loader.num_workers * seconds, cpu, delay)


def _times_of_descendants() -> dict[int, tuple[float, float]]:
    """Returns seconds on a core and ready to run, by process; of their first threads."""
    children: dict[int, list[int]] = {}
    for folder in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name before it is in parentheses, and may have some.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found: dict[int, tuple[float, float]] = {}
    left = children.get(os.getpid(), [])
    while left:
        process = left.pop()
        left += children.get(process, [])
        with contextlib.suppress(OSError, ValueError):
            cpu, delay, _ = (_PROCESSES / str(process) / "schedstat").read_text().split()
            found[process] = int(cpu) / 1e9, int(delay) / 1e9
    return found
