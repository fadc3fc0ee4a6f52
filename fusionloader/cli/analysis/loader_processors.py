"""What the workers of any loader get of the processors, torch's included."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from fusionloader.loader import FusionLoader
from fusionloader.observe.statistics.processor_use import ProcessorUse, ProcessorWatch
from fusionloader.options.aliases import AnyLoader

_PERIOD = 0.05  # seconds between two looks at processes


class LoaderProcessors:
    """Measures from its making on, while training waits for a loader."""

    def __init__(self, loader: AnyLoader) -> None:
        self._loader = loader
        self._watch = ProcessorWatch()
        self._watch.epoch_began()
        self._before = loader.stats().processors if isinstance(loader, FusionLoader) else None
        self._seen: dict[int, tuple[float, float, float]] = {}
        self._busy = self._cpu = self._delay = 0.0
        self._looked = 0.0

    def look(self, workers: Iterable[int]) -> None:
        """Looks at processes of torch's workers, which count nothing themselves.

        They are taken for busy from one look to the next, as they are while training waits.
        """
        now = time.monotonic()
        if self._before is not None or now - self._looked < _PERIOD:
            return
        self._looked = now
        for process in workers:
            with contextlib.suppress(OSError, ValueError):
                cpu, delay, _ = Path(f"/proc/{process}/schedstat").read_text().split()
                times = now, int(cpu) / 1e9, int(delay) / 1e9
                since, cpu_before, delay_before = self._seen.get(process, times)
                self._seen[process] = times
                self._busy += now - since
                self._cpu += times[1] - cpu_before
                self._delay += times[2] - delay_before

    def use(self) -> ProcessorUse:
        """Returns what was got until now."""
        if self._before is not None and isinstance(self._loader, FusionLoader):
            return self._loader.stats().processors.since(self._before)
        return self._watch.use(self._busy, self._cpu, self._delay)
