"""How long something was busy, between any two moments."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class BusyTime:
    """Of intervals in nanoseconds, which may overlap: what overlaps counts once.

    Answers any number of questions in logarithmic time each: the busy time until a moment grows
    linearly between the ends of intervals.
    """

    def __init__(self, intervals: Iterable[tuple[int, int]]) -> None:
        """``intervals``: (begin, end) in any order."""
        bounds = np.array(list(intervals), dtype=np.float64).reshape(-1, 2)
        times = bounds.T.reshape(-1)
        changes = np.repeat((1, -1), len(bounds))
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        active = np.minimum(np.cumsum(changes[order]), 1)
        lengths = np.diff(self._times) * active[:-1]
        self._until = np.concatenate(([0.0], np.cumsum(lengths)))[: len(times)]

    def until(self, moments: npt.ArrayLike) -> Array:
        """Returns the busy nanoseconds before each of the moments."""
        moments = np.asarray(moments, dtype=np.float64)
        if not len(self._times):
            return np.zeros_like(moments)
        until: Array = np.interp(moments, self._times, self._until)
        return until

    def between(self, begins: npt.ArrayLike, ends: npt.ArrayLike) -> Array:
        """Returns the busy nanoseconds between each ``begins[i]`` and ``ends[i]``."""
        return self.until(ends) - self.until(begins)
