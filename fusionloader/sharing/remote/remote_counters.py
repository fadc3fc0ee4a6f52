"""What is counted of remote workers, where the proxy writes it and training reads it."""

from __future__ import annotations

from fusionloader.observe.statistics.lane_counts import COUNTED, LaneCounts, LaneState
from fusionloader.system.shm.shared_page import PAGE, SharedPage

LANES = 64
"""Requests of so many remote cores are worked on at once by a loader, at most."""

_WORD = 8
_LANE_WORDS = 32
_NAME_WORDS = 8  # the last ones of a lane
_NAME_BYTES = _WORD * _NAME_WORDS


_PLACES = {name: 1 + place for place, name in enumerate(COUNTED)}  # in a lane, behind its state


class _Word:
    """A word before the lanes."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, counters: RemoteCounters, owner: type[RemoteCounters]) -> int:
        return int(counters._words[self._place])

    def __set__(self, counters: RemoteCounters, value: int) -> None:
        counters._words[self._place] = value


class RemoteCounters(SharedPage):
    """Words of 64 bits, each with one writer.

    Attributes:
        proxy_cpu_ns: processor time that the loader's machine has spent on remote workers.
        off_millionths: samples in a million that FastFlow's policy leaves to remote workers.
        steps: steps of training, but the first of each epoch.
        step_ns: time that these steps have taken, waits included.
        waited_ns: time that training has waited in them.
    """

    proxy_cpu_ns, off_millionths, steps, step_ns, waited_ns = map(_Word, range(5))
    nbytes = -(-(LANES + 1) * _LANE_WORDS * _WORD // PAGE) * PAGE

    def __init__(self, fd: int) -> None:
        """Maps the memory behind a descriptor, which it then owns."""
        super().__init__(fd)
        self._words = self._page.cast("B").cast("Q")
        self._bytes = self._page.cast("B")

    @classmethod
    def create(cls) -> RemoteCounters:
        """Returns one on which nothing is counted yet."""
        return cls(cls._made("remote-counters"))

    def enter(self, lane: int, address: str, state: LaneState) -> None:
        """Notes what a lane is at."""
        start = self._at(lane + 1) * _WORD - _NAME_BYTES
        self._bytes[start : start + _NAME_BYTES] = address.encode()[:_NAME_BYTES].ljust(
            _NAME_BYTES, b"\0"
        )
        self._words[self._at(lane)] = state

    def add(self, lane: int, **counts: int) -> None:
        """Adds to sums of ``LaneCounts``, as the lane's only writer."""
        for name, count in counts.items():
            self._words[self._at(lane) + _PLACES[name]] += count

    def lane(self, lane: int) -> LaneCounts:
        """Returns what was counted of a lane."""
        start, end = self._at(lane), self._at(lane + 1)
        name = bytes(self._bytes[end * _WORD - _NAME_BYTES : end * _WORD]).rstrip(b"\0")
        state, *counts = self._words[start : start + 1 + len(COUNTED)].tolist()
        return LaneCounts(name.decode(errors="replace"), LaneState(state), *counts)

    def lanes(self) -> list[LaneCounts]:
        """Returns those that there have been."""
        used = (self.lane(lane) for lane in range(LANES))
        return [lane for lane in used if lane.address]

    @staticmethod
    def _at(lane: int) -> int:
        return (lane + 1) * _LANE_WORDS

    def leave_all(self) -> None:
        """No lane serves any more: the process that had them has died."""
        for lane in range(LANES):
            if self._words[self._at(lane)] == LaneState.SERVING:
                self._words[self._at(lane)] = LaneState.AWAY
