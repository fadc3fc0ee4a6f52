"""What the doctor says of processors."""

import os

import pytest

from fusionloader.cli import environment
from fusionloader.cli.doctor import cores


@pytest.mark.parametrize(
    ("key", "flags", "level", "state"),
    [
        ("flags", "sse2 sse4_1 avx avx2 avx512bw", "AVX-512", "ok"),
        ("flags", "sse2 sse4_1 avx avx2", "AVX2", "ok"),
        ("flags", "sse2 sse4_1 avx", "SSE4.1; augmenting is vectorised with AVX2", "warn"),
        ("Features", "fp asimd evtstrm", "NEON; augmenting is vectorised with AVX2", "warn"),
        ("flags", "sse2", "none known; no AVX2, SSE4.1 or NEON", "warn"),
    ],
)
def test_it_says_what_runs_without_vectors(key, flags, level, state, monkeypatch):
    monkeypatch.setattr(environment, "_cpuinfo", {key: flags}.get)
    check = cores.instruction_set()
    assert check.value.startswith(level)
    assert check.state == state


def test_fewer_cores_than_the_machine_has_is_a_warning(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 8})
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    check = cores.cores_allowed()
    assert (check.state, check.value) == ("warn", "4 (0-2, 8) of 16")
    assert "num_workers=4" in check.remedy


@pytest.mark.parametrize(
    ("quota", "state", "value"),
    [(None, "ok", "none"), (4.0, "ok", "4 cores"), (1.5, "warn", "1.5 cores")],
)
def test_a_quota_below_the_cores_is_a_warning(quota, state, value, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    check = cores.quota()
    assert check.state == state and check.value.startswith(value)
    assert ("num_workers=1:" in check.remedy) == (state == "warn")


def test_a_quota_says_how_often_it_was_used_up(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(cores, "cpu_quota", lambda: 0.5)
    monkeypatch.setattr(cores, "throttled_share", lambda: 0.93)
    assert cores.quota().value == (
        "0.5 cores' time on 2 cores, used up in 93% of the periods until now"
    )


@pytest.mark.parametrize(("average", "state"), [(0.5, "ok"), (2.5, "warn")])
def test_other_load_is_a_warning(average, state, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (average, 0, 0))
    monkeypatch.setattr(cores, "recent_pressure", lambda: 0.77)
    assert cores.load().state == state
    assert cores.load().value == (
        f"{average:.1f} on 2 cores; processes waited for one 77% of the time"
    )
