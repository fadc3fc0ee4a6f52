"""A warning when no batch has come for long, which says what every worker is doing."""

from __future__ import annotations

import time
from collections.abc import Callable

from fusionloader.user_warnings import warn_user

WARN_SECONDS = 60.0


class StallWatch:
    """Warns once in a wait for a batch."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._warn_at = self._start + WARN_SECONDS

    @property
    def waited(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._start

    @property
    def seconds_left(self) -> float:
        """Until it would warn; infinite once it has."""
        return self._warn_at - time.monotonic()

    def check(self, report: Callable[[], str]) -> None:
        """Warns with what ``report`` says, if it is time."""
        if self.seconds_left <= 0:
            self._warn_at = float("inf")
            warn_user(f"FusionLoader: no batch for {self.waited:.0f} s. {report()}")
