"""The phases of an analysis, and how many steps of training each is measured on.

The phases are those of DS-Analyzer (Mohan et al., PVLDB 14(5), 2021, §4.2), on windows of steps of
one training instead of runs: what a phase takes away shows as a difference between windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fusionloader.observe.statistics.processor_use import ProcessorUse

_FEWEST_STEPS = 5
_MOST_EPOCHS = 4  # that begin in a window, if they are short
_LONGEST = 4  # times the seconds that were asked for, if steps are slow


class Phase(Enum):
    """Where the batches of a window come from."""

    TODAY = "as it runs"
    MEMORY = "one batch, replayed"
    WARM = "files in memory"
    COLD = "files from storage"


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """The steps of a window.

    Attributes:
        steps: number of measured steps.
        samples: number of samples in their batches.
        seconds: wall time of the steps: waiting, and training.
        waited: seconds of it within ``next()``.
        cpu_seconds: processor time of the training process, all threads.
        processors: what the loader's workers got of them; ``None`` where that was not measured.
    """

    steps: int
    samples: int
    seconds: float
    waited: float
    cpu_seconds: float
    processors: ProcessorUse | None = None

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def wait_share(self) -> float:
        """Of the time, how much training waited."""
        return self.waited / self.seconds


class MeasuredWindow:
    """Counts the steps of a phase until there are enough of them.

    Attributes:
        processors: what the loader's workers got of them, once that is known.
        waits: seconds of each step within ``next()``.

    Args:
        phase: the measured phase.
        seconds: duration of measured steps that is enough.
        skip: steps that are left out whenever workers have just begun: they have no backlog yet,
            and what they make comes in bursts.
    """

    def __init__(self, phase: Phase, seconds: float, skip: int) -> None:
        self.phase = phase
        self._enough, self._skip = seconds, skip
        self._to_skip = skip
        self._restarts = 0
        self._steps = self._samples = 0
        self._seconds = self._cpu_seconds = 0.0
        self.waits: list[float] = []
        self.processors: ProcessorUse | None = None

    def restart(self) -> None:
        """Workers have begun anew."""
        self._to_skip = self._skip
        self._restarts += 1

    def add(self, samples: int, waited: float, elsewhere: float, cpu_seconds: float) -> None:
        """Counts a step: seconds within ``next()``, and after it until the next one."""
        if self._to_skip:
            self._to_skip -= 1
            return
        self._steps += 1
        self._samples += samples
        self._seconds += waited + elsewhere
        self.waits.append(waited)
        self._cpu_seconds += cpu_seconds

    def add_tail(self, seconds: float) -> None:
        """Counts what a device took to finish the steps counted so far."""
        self._seconds += seconds

    @property
    def measures(self) -> bool:
        """Whether the next step is counted."""
        return not self._to_skip

    @property
    def steps(self) -> int:
        """Steps that were counted."""
        return self._steps

    @property
    def done(self) -> bool:
        """Whether there are enough steps, or too little hope for them."""
        if self._steps < _FEWEST_STEPS:
            return self._steps > 0 and self._seconds > _LONGEST * self._enough
        return self._seconds >= self._enough or self._restarts > _MOST_EPOCHS

    @property
    def result(self) -> PhaseResult | None:
        """What was counted; ``None`` before any step was."""
        if not self._steps:
            return None
        return PhaseResult(
            self._steps,
            self._samples,
            self._seconds,
            sum(self.waits),
            self._cpu_seconds,
            self.processors,
        )
