"""Counters of remote workers."""

from fusionloader.observe.statistics.lane_counts import LaneState
from fusionloader.sharing.remote.remote_counters import RemoteCounters


def test_a_worker_has_the_longest_name_that_a_host_may_have():
    address = ".".join(["a" * 63] * 3 + ["b" * 61]) + ":65535"
    counters = RemoteCounters.create()
    for lane in (3, 63):
        counters.enter(lane, address, LaneState.SERVING)
        counters.add(lane, samples=lane)
    assert [(each.address, each.samples) for each in counters.lanes()] == [
        (address, 3),
        (address, 63),
    ]
