"""A warning when no batch has come for long, which says what every worker is doing."""

from __future__ import annotations

import time
from collections.abc import Callable

from fusionloader.system.user_warnings import warn_user

WARN_SECONDS = 60.0


class StallWatch:
    """Warns once in a wait for a batch, and may end it."""

    def __init__(self, stall_timeout: float = 0) -> None:
        """With ``stall_timeout`` the wait ends in an error after as many seconds."""
        self._start = time.monotonic()
        self._warn_at = self._start + WARN_SECONDS
        self._stall_timeout = stall_timeout or float("inf")

    @property
    def waited(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._start

    @property
    def seconds_left(self) -> float:
        """Until it would warn or end the wait; infinite if it will not any more."""
        return min(self._warn_at, self._start + self._stall_timeout) - time.monotonic()

    def check(self, report: Callable[[], str]) -> None:
        """Warns with what ``report`` says, if it is time.

        Raises:
            RuntimeError: the wait has taken ``stall_timeout``.
        """
        if self.waited >= self._stall_timeout:
            raise RuntimeError(
                f"no progress for {self._stall_timeout:g} s (stall_timeout). {report()}. torch's "
                "workers are not replaced"
            )
        if time.monotonic() >= self._warn_at:
            self._warn_at = float("inf")
            warn_user(f"FusionLoader: no batch for {self.waited:.0f} s. {report()}")
