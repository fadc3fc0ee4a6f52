"""What the doctor says of what may run out."""

import os
import resource

import pytest

from fusionloader.cli.doctor import limits
from fusionloader.system.limits.control_groups import Limit
from fusionloader.system.limits.free_memory import FreeMemory

NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("free_mb", "state", "said"),
    [
        (8000, "ok", "8.0 GB free by the limit"),
        (500, "warn", "0.5 GB free by the limit"),
        (20, "fail", "20 MB free by the limit, too little for a batch"),
    ],
)
def test_shared_memory_that_is_short_says_how_to_get_more(free_mb, state, said):
    check = limits.shared_memory(FreeMemory(free_mb * 10**6, "the limit", "Raise it"))
    assert check.state == state and said in check.value
    assert check.remedy == ("" if state == "ok" else "Raise it")


@pytest.mark.parametrize(
    ("limit", "state", "value"),
    [
        (None, "ok", "none"),
        (Limit(8 * 10**9, 10**9), "ok", "8.0 GB, 7.0 GB free"),
        (Limit(2 * 10**9, 10**9), "warn", "2.0 GB, 1.0 GB free"),
    ],
)
def test_little_memory_of_a_container_is_a_warning(limit, state, value, monkeypatch):
    monkeypatch.setattr(limits, "memory_limit", lambda: limit)
    check = limits.memory()
    assert (check.state, check.value) == (state, value)


@pytest.mark.parametrize(
    ("most", "cores", "state"),
    [(1024, 8, "ok"), (NONE, 8, "ok"), (1024, 192, "warn"), (100, 1, "warn")],
)
def test_files_are_counted_by_cores(most, cores, state, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, NONE))
    check = limits.open_files()
    assert check.state == state
    assert ("ulimit -n" in check.remedy) == (state == "warn")


@pytest.mark.parametrize(
    ("most", "group", "state"),
    [
        (NONE, None, "ok"),
        (4096, None, "ok"),
        (50, None, "warn"),
        (4096, Limit(100, 70), "warn"),
        (NONE, Limit(4000, 70), "ok"),
    ],
)
def test_the_lesser_limit_of_processes_counts(most, group, state, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, NONE))
    monkeypatch.setattr(limits, "process_limit", lambda: group)
    assert limits.processes().state == state
