"""What is counted of a lane: a connection to one core of a remote worker."""

from __future__ import annotations

import enum
from typing import NamedTuple


class LaneState(enum.IntEnum):
    """State of a lane."""

    UNUSED = 0
    SERVING = 1
    AWAY = 2  # the worker does not answer now
    REFUSED = 3  # it does not take this loader's work


class LaneCounts(NamedTuple):
    """One lane: a connection to a core of a remote worker.

    The fields behind ``state`` are sums, a word each of the shared memory, and a sum over lanes is
    the field of that name of ``RemoteWorkerStats`` and ``RemoteStats``. ``samples`` and
    ``tiny_batches`` were made there; of ``leases_lost`` tiny-batches no answer came in time, and
    ``declined`` ones were left to this machine. ``round_trip_ns`` is the time from request to
    answer and ``busy_ns`` what of it the worker worked, both summed up.
    """

    address: str
    state: LaneState
    samples: int
    tiny_batches: int
    leases_lost: int
    declined: int
    bytes_sent: int
    bytes_received: int
    round_trip_ns: int
    busy_ns: int


COUNTED = LaneCounts._fields[2:]
"""Names of the sums."""
