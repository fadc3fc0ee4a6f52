"""A minimal progress bar: drawn on a terminal, silent elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

WIDTH = 28
REDRAW_SECONDS = 0.1


class ProgressBar:
    """Counts ``total`` steps on standard error under ``label``; a context manager."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self._started = time.perf_counter()
        self._drawn = 0.0
        self._visible = sys.stderr.isatty()

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Adds ``steps`` and redraws at most ten times a second; ``note`` is shown behind."""
        self.done += steps
        now = time.perf_counter()
        if self._visible and (now - self._drawn > REDRAW_SECONDS or self.done >= self.total):
            self._drawn = now
            self._draw(now, note)

    def _draw(self, now: float, note: str) -> None:
        share = min(1.0, self.done / self.total) if self.total else 1.0
        bar = ("#" * round(share * WIDTH)).ljust(WIDTH, ".")
        rate = self.done / max(now - self._started, 1e-9)
        line = f"\r{self.label} [{bar}] {self.done}/{self.total} {rate:.0f}/s {note}"
        print(line, end="\x1b[K", file=sys.stderr, flush=True)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
