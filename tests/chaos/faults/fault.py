"""What a fault is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.run import Run
    from chaos.trainer import Trainer

TRAPS = "traps"  # the group of faults in user code

Strike = Callable[["Run", "Trainer", int], bool]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        name: of the fault.
        do: strikes a run while a training process is at a part; returns whether it could.
        group: of kinds that are subject to it, of ``chaos.kinds.setting``; none: all kinds.
        asks: whether it has the training process do something, between two batches.
        weight: how often it is drawn, compared with others.
    """

    name: str
    do: Strike
    group: str | None = None
    asks: bool = False
    weight: int = 1

    def strike(self, run: Run, trainer: Trainer, part: int) -> None:
        """Does it, and counts it."""
        if self.do(run, trainer, part):
            run.tally.faults[self.name] += 1
            run.note(self.name)
