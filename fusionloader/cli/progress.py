"""How far a command has come: a bar on a terminal, a line every few seconds elsewhere.

Both on standard error, and only for what takes longer than ``PATIENCE``.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from time import monotonic

from tqdm import tqdm

PATIENCE = 2.0
LINE_SECONDS = 5.0
_REDRAW_SECONDS = 0.1
_COUNTED = "{desc}: {n_fmt} of {total_fmt}, {elapsed} so far, {remaining} left{postfix}"
_UNCOUNTED = "{desc}: {elapsed} so far{postfix}"


class Progress:
    """Counts steps under a label; a context manager."""

    def __init__(
        self, label: str, total: int | None = None, *, patience: float | None = None
    ) -> None:
        """Begins to count to ``total``; with ``None`` only the time is shown.

        ``patience`` is 0 for what is known to take long, whose single steps do too.
        """
        kind = _Bar if sys.stderr.isatty() else _Lines
        patience = PATIENCE if patience is None else patience
        self._shown: _Bar | _Lines = kind(label, total, patience)

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Adds ``steps``; ``note`` is shown behind them, until there is another."""
        self._shown.advance(steps, note)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()


@contextlib.contextmanager
def elapsed(label: str) -> Iterator[None]:
    """Shows how long the block has been running, where there is nothing to count."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(PATIENCE / 4):
            progress.advance(0)

    with Progress(label) as progress:
        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()


class _QuietTqdm(tqdm):  # type: ignore[misc]  # it has no types
    """Without the thread that redraws, and without a semaphore: commands fork workers."""

    monitor_interval = 0


_QuietTqdm.set_lock(threading.RLock())


class _Bar:
    """On a terminal."""

    def __init__(self, label: str, total: int | None, patience: float) -> None:
        self._bar = _QuietTqdm(
            desc=label,
            total=total,
            delay=patience,
            mininterval=_REDRAW_SECONDS,
            miniters=0,
            leave=False,
            dynamic_ncols=True,
            bar_format=None if total is not None else _UNCOUNTED,
        )

    def advance(self, steps: int, note: str) -> None:
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(steps)

    def close(self) -> None:
        self._bar.close()


class _Lines:
    """Where nothing can be drawn again: in files and pipes."""

    def __init__(self, label: str, total: int | None, patience: float) -> None:
        self._label, self._total = label, total
        self._done, self._note = 0, ""
        self._began = monotonic()
        self._due = self._began + patience

    def advance(self, steps: int, note: str) -> None:
        self._done += steps
        self._note = note or self._note
        if (now := monotonic()) >= self._due:
            self._due = now + LINE_SECONDS
            self._print(now)

    def _print(self, now: float) -> None:
        line = tqdm.format_meter(
            self._done,
            self._total,
            now - self._began,
            prefix=self._label,
            postfix=self._note,
            bar_format=_UNCOUNTED if self._total is None else _COUNTED,
        )
        print(f"  {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is left to be cleared."""
