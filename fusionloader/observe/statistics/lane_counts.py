"""What is counted of a lane: a connection to one core of a remote worker."""

from __future__ import annotations

import enum
from typing import NamedTuple


class LaneState(enum.IntEnum):
    """What a lane is at."""

    UNUSED = 0
    SERVING = 1
    AWAY = 2  # the worker does not answer now
    REFUSED = 3  # it does not take this loader's work


class LaneCount(enum.IntEnum):
    """The words of a lane, each of which only ever grows."""

    SAMPLES = 1
    TINY_BATCHES = 2
    LOST = 3
    DECLINED = 4
    BYTES_SENT = 5
    BYTES_RECEIVED = 6
    ROUND_TRIP_NS = 7
    BUSY_NS = 8


class LaneCounts(NamedTuple):
    """One lane: a connection to a core of a remote worker.

    ``samples`` and ``tiny_batches`` were made there; of ``lost`` tiny-batches no answer came in
    time, and ``declined`` ones were left to this machine. ``round_trip_ns`` is the time from
    request to answer and ``busy_ns`` what of it the worker worked, both summed up.
    """

    address: str
    state: LaneState
    samples: int
    tiny_batches: int
    lost: int
    declined: int
    bytes_sent: int
    bytes_received: int
    round_trip_ns: int
    busy_ns: int
