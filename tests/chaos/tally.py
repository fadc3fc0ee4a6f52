"""What a campaign has counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """Counts of one run, or of many.

    Attributes:
        faults: by name; ``kills`` of them, by the role of who was killed.
        made_by: samples, batches and files by the part of the package that had to do with them.
        errors: that training was told, as it should be.
        lost, doubled, altered: samples.
    """

    runs: int = 0
    epochs: int = 0
    batches: int = 0
    samples: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    made_by: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    lost: int = 0
    doubled: int = 0
    altered: int = 0
    hangs: int = 0
    left_behind: int = 0

    def add(self, other: Tally) -> None:
        """Adds another one."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def compare(self, rows: list[str], wanted: list[str]) -> bool:
        """Counts what differs between rows of a batch; returns whether they are the same."""
        if rows == wanted:
            return True
        found, expected = Counter(rows), Counter(wanted)
        missing, more = (expected - found).total(), 0
        for row, count in (found - expected).items():
            if row in expected:
                self.doubled += count
            else:
                more += count
        self.altered += max(more, int(found == expected))  # rows in another order
        self.lost += max(missing - more, 0)
        return False

    def as_dict(self) -> dict[str, Any]:
        """Returns all counts as plain values."""
        counts = {name: getattr(self, name) for name in self.__slots__}
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in counts.items()}

    def in_words(self) -> str:
        """Returns what was done and what went wrong, in a line."""
        done = (
            f"{self.runs} runs, {self.samples} samples, {self.faults.total()} faults, "
            f"{self.kills.total()} signals"
        )
        wrong = f"{self.lost} lost, {self.doubled} doubled, {self.altered} altered"
        return f"{done}: {wrong}, {self.hangs} hung, {self.left_behind} left behind"
