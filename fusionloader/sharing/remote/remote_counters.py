"""Counters of remote workers in shared memory, between the proxy and the training process."""

from __future__ import annotations

from fusionloader.observe.statistics.lane_counts import COUNTED, LaneCounts, LaneState
from fusionloader.system.shm.objects import PAGE, SharedPage

LANES = 64
"""Most remote cores that work for a loader at a time."""

_WORD = 8
_LANE_WORDS = 64
_NAME_WORDS = 33  # the last ones of a lane: 253 characters of a host, and its port
_NAME_BYTES = _WORD * _NAME_WORDS


_PLACES = {name: 1 + place for place, name in enumerate(COUNTED)}  # in a lane, behind its state


class _Word:
    """A word before the lanes, as an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, counters: RemoteCounters, owner: type[RemoteCounters]) -> int:
        return int(counters._words[self._place])

    def __set__(self, counters: RemoteCounters, value: int) -> None:
        counters._words[self._place] = value


class RemoteCounters(SharedPage):
    """Words of 64 bits. Each has one writer, so increments need not be atomic.

    Attributes:
        proxy_cpu_ns: processor time that this machine has spent on remote workers, in nanoseconds.
        off_millionths: samples in a million that FastFlow's policy leaves to remote workers.
        steps: number of training steps, without the first of each epoch.
        step_ns: time that these steps have taken, waits included, in nanoseconds.
        waited_ns: time that training has waited in these steps, in nanoseconds.
    """

    proxy_cpu_ns, off_millionths, steps, step_ns, waited_ns = map(_Word, range(5))
    nbytes = -(-(LANES + 1) * _LANE_WORDS * _WORD // PAGE) * PAGE

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._words = self._page.cast("B").cast("Q")
        self._bytes = self._page.cast("B")

    @classmethod
    def create(cls) -> RemoteCounters:
        """Returns counters that are all zero."""
        return cls(cls._made("remote-counters"))

    def enter(self, lane: int, address: str, state: LaneState) -> None:
        """Sets the worker and the state of a lane."""
        start = self._at(lane + 1) * _WORD - _NAME_BYTES
        self._bytes[start : start + _NAME_BYTES] = address.encode()[:_NAME_BYTES].ljust(
            _NAME_BYTES, b"\0"
        )
        self._words[self._at(lane)] = state

    def add(self, lane: int, **counts: int) -> None:
        """Adds to sums of ``LaneCounts``; called by the lane alone."""
        for name, count in counts.items():
            self._words[self._at(lane) + _PLACES[name]] += count

    def lane(self, lane: int) -> LaneCounts:
        start, end = self._at(lane), self._at(lane + 1)
        name = bytes(self._bytes[end * _WORD - _NAME_BYTES : end * _WORD]).rstrip(b"\0")
        state, *counts = self._words[start : start + 1 + len(COUNTED)].tolist()
        return LaneCounts(name.decode(errors="replace"), LaneState(state), *counts)

    def lanes(self) -> list[LaneCounts]:
        """Returns the counts of all lanes that have been in use."""
        used = (self.lane(lane) for lane in range(LANES))
        return [lane for lane in used if lane.address]

    @staticmethod
    def _at(lane: int) -> int:
        return (lane + 1) * _LANE_WORDS

    def leave_all(self) -> None:
        """Marks serving lanes as away, after their process has died."""
        for lane in range(LANES):
            if self._words[self._at(lane)] == LaneState.SERVING:
                self._words[self._at(lane)] = LaneState.AWAY
