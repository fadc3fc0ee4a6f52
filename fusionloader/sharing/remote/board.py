"""What is counted of remote workers, where the proxy writes it and training reads it."""

from __future__ import annotations

import enum

from fusionloader.observe.statistics.lane_counts import LaneCount, LaneCounts, LaneState
from fusionloader.system.shm.shared_page import PAGE, SharedPage

LANES = 64
"""Requests of so many remote cores are worked on at once by a loader, at most."""

_WORD = 8
_LANE_WORDS = 32
_NAME_WORDS = 8  # the last ones of a lane
_NAME_BYTES = _WORD * _NAME_WORDS


class _Word(enum.IntEnum):
    """The words before the lanes."""

    PROXY_CPU_NS = 0
    OFF_RATIO = 1  # of FastFlow's policy, in millionths
    STEPS = 2
    STEP_NS = 3
    WAITED_NS = 4


class RemoteBoard(SharedPage):
    """Words of 64 bits, each with one writer."""

    nbytes = -(-(LANES + 1) * _LANE_WORDS * _WORD // PAGE) * PAGE

    def __init__(self, fd: int) -> None:
        """Maps the memory behind a descriptor, which it then owns."""
        super().__init__(fd)
        self._words = self._page.cast("B").cast("Q")
        self._bytes = self._page.cast("B")

    @classmethod
    def create(cls) -> RemoteBoard:
        """Returns one on which nothing is counted yet."""
        return cls(cls._made("remote-board"))

    # ---- lanes -------------------------------------------------------------------------------

    def enter(self, lane: int, address: str, state: LaneState) -> None:
        """Notes what a lane is at."""
        start = self._at(lane + 1) * _WORD - _NAME_BYTES
        self._bytes[start : start + _NAME_BYTES] = address.encode()[:_NAME_BYTES].ljust(
            _NAME_BYTES, b"\0"
        )
        self._words[self._at(lane)] = state

    def add(self, lane: int, what: LaneCount, count: int) -> None:
        """Counts, as the lane's only writer."""
        self._words[self._at(lane) + what] += count

    def add_rows(
        self, lane: int, samples: int, tiny_batches: int, nbytes: int, busy_ns: int
    ) -> None:
        """Counts what a remote worker has made, as the lane's only writer."""
        words, at = self._words, self._at(lane)
        words[at + LaneCount.SAMPLES] += samples
        words[at + LaneCount.TINY_BATCHES] += tiny_batches
        words[at + LaneCount.BYTES_RECEIVED] += nbytes
        words[at + LaneCount.BUSY_NS] += busy_ns

    def lane(self, lane: int) -> LaneCounts:
        """Returns what was counted of a lane."""
        start, end = self._at(lane), self._at(lane + 1)
        name = bytes(self._bytes[end * _WORD - _NAME_BYTES : end * _WORD]).rstrip(b"\0")
        state, *counts = self._words[start : start + 1 + len(LaneCount)].tolist()
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

    # ---- the proxy's --------------------------------------------------------------------------

    @property
    def proxy_cpu_ns(self) -> int:
        """Processor time that the loader's machine has spent on remote workers."""
        return int(self._words[_Word.PROXY_CPU_NS])

    @proxy_cpu_ns.setter
    def proxy_cpu_ns(self, ns: int) -> None:
        self._words[_Word.PROXY_CPU_NS] = ns

    @property
    def off_ratio(self) -> float:
        """The share of samples that FastFlow's policy leaves to remote workers."""
        return self._words[_Word.OFF_RATIO] / 1e6

    @off_ratio.setter
    def off_ratio(self, ratio: float) -> None:
        self._words[_Word.OFF_RATIO] = round(ratio * 1e6)

    # ---- training's ---------------------------------------------------------------------------

    def set_steps(self, steps: int, step_ns: int, waited_ns: int) -> None:
        """Notes the steps of training so far, the time that they took, and the waits in it."""
        self._words[_Word.STEPS] = steps
        self._words[_Word.STEP_NS] = step_ns
        self._words[_Word.WAITED_NS] = waited_ns

    @property
    def steps(self) -> int:
        """Steps of training, but the first of each epoch."""
        return int(self._words[_Word.STEPS])

    @property
    def step_ns(self) -> int:
        """Time that these steps have taken, waits included."""
        return int(self._words[_Word.STEP_NS])

    @property
    def waited_ns(self) -> int:
        """Time that training has waited for their mini-batches."""
        return int(self._words[_Word.WAITED_NS])
