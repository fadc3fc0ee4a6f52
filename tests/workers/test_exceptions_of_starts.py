"""An exception while it is seen whether a worker can be started: nothing stays open."""

import contextlib
import os

from support.raised_at import CALLS, Steps

from fusionloader.workers import processes

EVENTS = (*CALLS, "c_return")


def test_no_descriptor_stays_open_whatever_is_raised_where_they_are_counted():
    left = {}
    steps = Steps("workers/processes.py", events=EVENTS)
    for position in range(steps.count(processes._check_descriptors)):
        before = os.listdir("/proc/self/fd")
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), processes._check_descriptors)
        if (after := os.listdir("/proc/self/fd")) != before:
            left[steps.place] = after
    assert not left
