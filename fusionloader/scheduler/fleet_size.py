"""How many remote workers to run, between the fewest and the most that the user allows.

FastFlow (Um et al., PVLDB 16(5), 2023, §9) divides the rate that training lacks by the rate of one
worker. Here the result is corrected by what is measured afterwards. Ranks that share workers have a
number each, and the sum of these numbers runs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

_BUSY = 0.75  # fraction of the time that a worker should be busy
_WAITS = 0.05  # fraction of the time that training waits, above which more workers help
_RAISE_AFTER = 3  # reports in a row
_LOWER_AFTER = 20  # keeping a worker for a while is cheaper than starting it again
_LEAST_WORK = 0.05  # fraction of the time that training works, for a rate to be extrapolated
_SILENT_SECONDS = 2.0  # several times what is between two reports, see `SharedFleetSize.observe`
_SILENT_INTERVALS = 3


class OtherRanks(NamedTuple):
    """What other ranks do with the same workers.

    Attributes:
        busy_share: sum of their busy shares, see ``FleetSize.observe``.
        wish: sum of the workers that they need.
    """

    busy_share: float = 0.0
    wish: int = 0


_NONE = OtherRanks()


class FleetSize:
    """Raises the number while training waits for busy workers; lowers it while they idle.

    Training may wait for something other than remote workers. They are not busy then, and more of
    them would not help.

    Attributes:
        wish: number of workers that should run for this training.
    """

    def __init__(self, fewest: int, most: int, wish: int | None = None) -> None:
        """Starts with the fewest, or with ``wish``.

        Raises:
            ValueError: not ``0 <= fewest <= most``.
        """
        if not 0 <= fewest <= most:
            raise ValueError(f"there cannot be {fewest} workers at least and {most} at most")
        self._fewest = fewest
        self._most = most
        self._missing: list[float] = []  # workers that are missing, by reports in a row
        self._idle: list[float] = []  # workers that were busy, by reports in a row of idle ones
        self._change(fewest if wish is None else wish)

    def observe(
        self,
        busy_share: float,
        wait_share: float,
        there: int,
        remote_share: float | None = None,
        others: OtherRanks = _NONE,
    ) -> int:
        """Updates ``wish`` from a report about the last half second or so, and returns it.

        Args:
            busy_share: mean fraction of the time that workers had requests of this training, 0 to
                1. Workers that several trainings keep busy are divided among them in proportion.
            wait_share: fraction of the time that training waited, 0 to 1.
            there: number of workers that take requests now.
            remote_share: fraction of the samples that remote workers made, if there were any.
            others: the other ranks that use these workers.
        """
        total_share = busy_share + others.busy_share
        at_work = busy_share * there / max(1.0, total_share)  # workers, of which parts count
        waits = wait_share > _WAITS
        busy = total_share >= _BUSY or there == 0
        # The workers that were requested last have to run before more are requested.
        short = waits and busy and there >= self.wish + others.wish
        idle = not waits and at_work < _BUSY * min(there, self.wish)
        missing = _missing(at_work, wait_share, remote_share)
        self._missing = [*self._missing, missing] if short else []
        self._idle = [*self._idle, at_work] if idle else []
        if len(self._missing) >= _RAISE_AFTER:
            # The estimate is infinite if remote workers have made next to nothing.
            self._change(self.wish + max(1, math.ceil(min(*self._missing, self._most))))
        elif len(self._idle) >= _LOWER_AFTER:
            # As many as would have been busy enough at the busiest moment.
            self._change(min(self.wish, math.ceil(max(self._idle) / _BUSY)))
        return self.wish

    def take(self, spare: int, at_work: float) -> int:
        """Raises ``wish`` by workers that another rank no longer needs, and this one keeps busy.

        Returns how many of the ``spare`` ones it takes; ``at_work`` are busy for this rank.
        """
        wanted = min(math.ceil(at_work / _BUSY), self._most, self.wish + spare)
        taken = max(0, wanted - self.wish)
        if taken:
            self._change(self.wish + taken)
        return taken

    def _change(self, wanted: int) -> None:
        self.wish = min(max(wanted, self._fewest), self._most)
        self._missing, self._idle = [], []


def _missing(at_work: float, wait_share: float, remote_share: float | None) -> float:
    """Returns the workers that are missing: the rate that training lacks by the rate of one.

    Workers of which ``at_work`` were busy have made ``remote_share`` of the samples that training
    took while it waited ``wait_share`` of the time.
    """
    if not remote_share:
        return 0.0  # the rate of one is not known
    return wait_share / max(1 - wait_share, _LEAST_WORK) * at_work / remote_share


class _Report(NamedTuple):
    """The last report of a rank.

    Attributes:
        busy_share: see ``FleetSize.observe``.
        at: time of the report.
        until: time from which the rank counts as one without requests, unless it reports again.
    """

    busy_share: float
    at: float
    until: float


Rank = TypeVar("Rank", bound=Hashable)


class SharedFleetSize(Generic[Rank]):
    """The number of workers for several ranks: the sum of what each of them needs.

    A worker that one rank no longer needs goes on for ranks that keep it busy, so that no worker is
    ended to be started again. Times are in seconds, of any clock.
    """

    def __init__(self) -> None:
        self._sizes: dict[Rank, FleetSize] = {}
        self._reports: dict[Rank, _Report] = {}
        self._there = 0

    @property
    def needs(self) -> dict[Rank, int]:
        """The number of workers that each rank needs."""
        return {rank: size.wish for rank, size in self._sizes.items()}

    @property
    def wish(self) -> int:
        """The number of workers that should run."""
        return sum(self.needs.values())

    def join(self, rank: Rank, size: FleetSize, now: float) -> None:
        self._sizes[rank], self._reports[rank] = size, _Report(0.0, now, now)

    def leave(self, rank: Rank, now: float) -> None:
        """Removes a rank, if it is there."""
        size = self._sizes.pop(rank, None)
        self._reports.pop(rank, None)
        if size is not None:
            self._pass_on(size.wish, now)

    def observe(
        self,
        rank: Rank,
        now: float,
        busy_share: float,
        wait_share: float,
        there: int,
        remote_share: float | None = None,
    ) -> None:
        """Updates the needs from a rank's report, see ``FleetSize.observe``.

        A rank reports while it waits for batches, so the time between two reports is about a step
        of its training if that is long. A rank that has reported nothing for several times as long
        pauses, as between two epochs.
        """
        size, self._there = self._sizes[rank], there
        silence = max(_SILENT_SECONDS, _SILENT_INTERVALS * (now - self._reports[rank].at))
        self._reports[rank], before = _Report(busy_share, now, now + silence), size.wish
        others = OtherRanks(
            sum(self._busy_shares(now).values()) - busy_share, self.wish - size.wish
        )
        size.observe(busy_share, wait_share, there, remote_share, others)
        if size.wish < before:
            self._pass_on(before - size.wish, now)

    def _busy_shares(self, now: float) -> dict[Rank, float]:
        return {
            rank: report.busy_share if now < report.until else 0.0
            for rank, report in self._reports.items()
        }

    def _pass_on(self, spare: int, now: float) -> None:
        """Offers workers that a rank no longer needs to the others."""
        shares = self._busy_shares(now)
        total_share = max(1.0, sum(shares.values()))
        for rank, size in self._sizes.items():
            spare -= size.take(spare, shares[rank] * self._there / total_share)
