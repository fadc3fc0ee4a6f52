"""How many remote workers there should be, between the fewest and the most that a user allows."""

from __future__ import annotations

import math

_BUSY = 0.75  # share of the time, to which the number is fitted
_WAITS = 0.05  # share of the time that training waits, above which more workers are of use
_RAISE_AFTER = 3  # loads in a row
_LOWER_AFTER = 20  # it is cheaper to keep a worker for a while than to start it again
_GROWTH = 1.5


class FleetSize:
    """Raises the number while training waits for busy workers; lowers it while they idle.

    Training may wait for something else than its remote workers: then they are not busy, and more
    of them would not help.

    Attributes:
        wish: workers that there should be.
    """

    def __init__(self, fewest: int, most: int) -> None:
        """Begins with the fewest.

        Raises:
            ValueError: not ``0 <= fewest <= most``.
        """
        if not 0 <= fewest <= most:
            raise ValueError(f"there cannot be {fewest} workers at least and {most} at most")
        self.wish = fewest
        self._fewest = fewest
        self._most = most
        self._short = 0  # loads in a row that ask for more
        self._idle: list[float] = []  # busy shares in a row that ask for fewer

    def hear(self, busy_share: float, wait_share: float, there: int) -> int:
        """Learns about a while, of half a second or so; returns ``wish``.

        Args:
            busy_share: of the time, that workers had something to do, on average.
            wait_share: of the time, that training waited.
            there: workers that may be asked now.
        """
        waits = wait_share > _WAITS
        busy = busy_share >= _BUSY or there == 0
        # Those that were asked for last are to be there before more are.
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
