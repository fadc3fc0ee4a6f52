"""How many images were deferred in this process, what was recorded, and what ended it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Counters since they were taken last.

    Attributes:
        files: images of files whose pixels were deferred.
        left: files that Pillow decodes, by the reason.
        recorded: operations by name.
        results: what the native executor was run for (``"tensor"``, ``"array"``), and
            ``"pixels"`` where a Pillow image got its pixels.
        ended: what asked for the pixels of a Pillow image, by name.
    """

    files: int = 0
    left: Counter[str] = field(default_factory=Counter)
    recorded: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Adds the counts of another process."""
        self.files += other.files
        for name in ("left", "recorded", "results", "ended"):
            getattr(self, name).update(getattr(other, name))

    def __bool__(self) -> bool:
        """Whether anything was counted."""
        return bool(self.files or self.left or self.results)

    def as_dict(self) -> dict[str, object]:
        """Returns them as plain values, for ``stats()``."""
        return {
            "files": self.files,
            "left_to_pillow": dict(self.left),
            "recorded": dict(self.recorded),
            "results": dict(self.results),
            "ended_by": dict(self.ended),
        }

    def explain(self) -> list[str]:
        """Returns the lines of ``explain()``."""
        lines = [f"deferred images: {self.files} files opened by user code were decoded natively"]
        if self.left:
            lines.append(f"  left to Pillow: {_listed(self.left)}")
        if self.recorded:
            lines.append(f"  recorded: {_listed(self.recorded)}")
        if self.results:
            lines.append(f"  run for: {_listed(self.results)}")
        if self.ended:
            lines.append(
                f"  given pixels, and left to Pillow from there, for: {_listed(self.ended)}"
            )
        return lines


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


_counts = Counts()


class _Thread(threading.local):
    aside: Counts | None = None


_thread = _Thread()


def counts() -> Counts:
    """Returns this process's counters."""
    return _counts if _thread.aside is None else _thread.aside


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Counts nothing of what this thread does."""
    _thread.aside = Counts()
    try:
        yield
    finally:
        _thread.aside = None


def take() -> Counts:
    """Returns this process's counters and starts new ones."""
    global _counts
    taken, _counts = _counts, Counts()
    return taken
