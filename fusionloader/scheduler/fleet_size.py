"""How many remote workers to run, between the fewest and the most that the user allows."""

from __future__ import annotations

import math

_BUSY = 0.75  # fraction of the time that a worker should be busy
_WAITS = 0.05  # fraction of the time that training waits, above which more workers help
_RAISE_AFTER = 3  # reports in a row
_LOWER_AFTER = 20  # keeping a worker for a while is cheaper than starting it again
_GROWTH = 1.5


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
        self._short = 0  # reports in a row that ask for more
        self._idle: list[float] = []  # busy shares of the reports in a row that ask for fewer

    def observe(self, busy_share: float, wait_share: float, there: int) -> int:
        """Updates ``wish`` from a report about the last half second or so, and returns it.

        Args:
            busy_share: mean fraction of the time that workers were busy, 0 to 1.
            wait_share: fraction of the time that training waited, 0 to 1.
            there: number of workers that take requests now.
        """
        waits = wait_share > _WAITS
        busy = busy_share >= _BUSY or there == 0
        # The workers that were requested last have to run before more are requested.
        short = waits and busy and there >= self.wish
        idle = not waits and busy_share < _BUSY and there > 0
        self._short = self._short + 1 if short else 0
        self._idle = [*self._idle, busy_share] if idle else []
        if self._short >= _RAISE_AFTER:
            self._change(max(self.wish + 1, int(self.wish * _GROWTH)))
        elif len(self._idle) >= _LOWER_AFTER:
            # As many as would have been busy enough at the busiest moment.
            self._change(min(self.wish, math.ceil(there * max(self._idle) / _BUSY)))
        return self.wish

    def _change(self, wanted: int) -> None:
        self.wish = min(max(wanted, self._fewest), self._most)
        self._short = 0
        self._idle = []
