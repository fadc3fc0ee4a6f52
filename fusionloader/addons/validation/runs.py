"""The validations of one ``OverlappedValidation``."""

from __future__ import annotations

import warnings
from collections import deque
from itertools import zip_longest

from fusionloader.addons.validation.part_batches import PartProgress
from fusionloader.addons.validation.results import ValidationResult
from fusionloader.addons.validation.run import Run, ThreadTeam

_NOTHING = PartProgress()


class Runs:
    """The validations of one object, which end with it, or with the process.

    Attributes:
        unread: runs, and results of skipped ones, in the order of ``start``.
        team: the threads; ``None`` before the first validation.
        started: number of started validations.
    """

    def __init__(self) -> None:
        self.unread: deque[Run | ValidationResult] = deque()
        self.team: ThreadTeam | None = None
        self.started = 0
        self._last: Run | None = None
        self._given_up: Run | None = None
        self._before: list[PartProgress] = []

    @property
    def running(self) -> Run | None:
        last = self._last
        return None if last is None or last.ended.is_set() or last is self._given_up else last

    def begin(self, run: Run) -> None:
        self._before = self.totals()
        self._last = run
        self.started += 1
        self.unread.append(run)

    def give_up(self, run: Run) -> None:
        """Removes a validation that was stopped and may never end."""
        self._given_up = run
        if run in self.unread:
            self.unread.remove(run)

    def check_free(self) -> None:
        """Raises RuntimeError while a validation that was given up has not ended."""
        run = self._given_up
        if run is not None and not run.ended.is_set():
            raise RuntimeError(
                f"the validation of epoch {run.epoch}, which took too long, still evaluates a "
                "batch or waits for one: the model cannot be copied. Make another "
                "OverlappedValidation"
            )

    def totals(self) -> list[PartProgress]:
        """Returns the progress of each part, summed over all validations."""
        if self._last is None:
            return self._before
        return [a + b for a, b in zip_longest(self._before, self._last.parts, fillvalue=_NOTHING)]

    def close(self) -> None:
        """Gives up the running validation, and ends the threads."""
        running = self.running
        if running is not None:
            running.stop()
            self.give_up(running)
        team, self.team = self.team, None
        if team is not None:
            team.close()


def abandon(runs: Runs) -> None:
    """Closes the validations when their owner is collected or the process ends."""
    unread = [str(entry.epoch) for entry in runs.unread]
    runs.close()
    if unread:
        warnings.warn(
            f"the validation results of epochs {', '.join(unread)} were not read: call finish() "
            "behind the last epoch",
            stacklevel=2,
        )
