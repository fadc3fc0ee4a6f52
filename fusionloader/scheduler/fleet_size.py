"""How many remote workers to run, between the fewest and the most that the user allows.

FastFlow (Um et al., PVLDB 16(5), 2023, §9) divides the rate that training lacks by the rate of one
worker. Here the result is corrected by what is measured afterwards.
"""

from __future__ import annotations

import math

_BUSY = 0.75  # fraction of the time that a worker should be busy
_WAITS = 0.05  # fraction of the time that training waits, above which more workers help
_RAISE_AFTER = 3  # reports in a row
_LOWER_AFTER = 20  # keeping a worker for a while is cheaper than starting it again
_LEAST_WORK = 0.05  # fraction of the time that training works, for a rate to be extrapolated


class FleetSize:
    """Raises the number while training waits for busy workers; lowers it while they idle.

    Training may wait for something other than remote workers. They are not busy then, and more of
    them would not help.

    Attributes:
        wish: number of workers that should run.
    """

    def __init__(self, fewest: int, most: int) -> None:
        """Starts with the fewest.

        Raises:
            ValueError: not ``0 <= fewest <= most``.
        """
        if not 0 <= fewest <= most:
            raise ValueError(f"there cannot be {fewest} workers at least and {most} at most")
        self.wish = fewest
        self._fewest = fewest
        self._most = most
        self._missing: list[float] = []  # workers that are missing, by reports in a row
        self._idle: list[float] = []  # busy shares of the reports in a row that ask for fewer

    def observe(
        self, busy_share: float, wait_share: float, there: int, remote_share: float | None = None
    ) -> int:
        """Updates ``wish`` from a report about the last half second or so, and returns it.

        Args:
            busy_share: mean fraction of the time that workers were busy, 0 to 1.
            wait_share: fraction of the time that training waited, 0 to 1.
            there: number of workers that take requests now.
            remote_share: fraction of the samples that remote workers made, if there were any.
        """
        waits = wait_share > _WAITS
        busy = busy_share >= _BUSY or there == 0
        # The workers that were requested last have to run before more are requested.
        short = waits and busy and there >= self.wish
        idle = not waits and busy_share < _BUSY and there > 0
        missing = _missing(busy_share * there, wait_share, remote_share)
        self._missing = [*self._missing, missing] if short else []
        self._idle = [*self._idle, busy_share] if idle else []
        if len(self._missing) >= _RAISE_AFTER:
            self._change(self.wish + max(1, math.ceil(min(self._missing))))
        elif len(self._idle) >= _LOWER_AFTER:
            # As many as would have been busy enough at the busiest moment.
            self._change(min(self.wish, math.ceil(there * max(self._idle) / _BUSY)))
        return self.wish

    def _change(self, wanted: int) -> None:
        self.wish = min(max(wanted, self._fewest), self._most)
        self._missing, self._idle = [], []


def _missing(busy: float, wait_share: float, remote_share: float | None) -> float:
    """Returns the workers that are missing: the rate that training lacks by the rate of one.

    ``busy`` workers, of which a fraction counts as such, have made ``remote_share`` of the samples
    that training took while it waited ``wait_share`` of the time.
    """
    if not remote_share:
        return 0.0  # the rate of one is not known
    return wait_share / max(1 - wait_share, _LEAST_WORK) * busy / remote_share
