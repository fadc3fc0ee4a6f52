"""Workers whose training process was killed end within 2 s, whatever they are blocked in."""

import contextlib
import os
from pathlib import Path

import psutil
import pytest
from ends import PATH
from support import warm_start
from support.waiting import wait_until, wait_until_gone, wait_until_nothing_is_left

SCRIPT = Path(__file__).with_name("orphans.py")


@pytest.mark.parametrize(
    ("kind", "blocked"),
    [
        ("rows fork", "sleep"),
        ("rows fork", "GIL"),
        ("rows fork", "futex"),
        ("rows fork", "fifo"),
        ("rows fork", "pipe"),
        pytest.param("rows spawn", "GIL", marks=pytest.mark.matrix),
        ("rows forkserver", "GIL"),
        ("plan fork", "pipe"),
        ("plan fork", "idle"),
        ("plan spawn", "pipe"),
        ("init fork", "GIL"),
        ("collate fork", "GIL"),
        ("collate fork", "pipe"),
        pytest.param("collate forkserver", "sleep", marks=pytest.mark.matrix),
        ("stream fork", "GIL"),
        ("pool fork", "GIL"),
        ("shared fork", "idle"),
        ("preprocessor", "idle"),
        ("remote", "idle"),
        ("reader", "idle"),
        ("gpu", "idle"),
        ("bare", "GIL"),
    ],
)
@pytest.mark.few(10)
def test_a_worker_ends_with_its_training(kind, blocked, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    os.mkfifo(tmp_path / "fifo")
    writer = os.open(tmp_path / "fifo", os.O_RDWR)  # who reads waits for ever
    training, pids = warm_start.start(SCRIPT, kind, blocked, str(tmp_path), path=PATH), []
    try:
        pids = [int(word) for word in training.stdout.readline().split()]
        assert len(pids) >= 2
        training.kill()
        wait_until(lambda: training.poll() is not None)  # its memory may take a while to free
        wait_until_gone(pids, 2, f"workers, {kind}, {blocked}")
        wait_until_nothing_is_left(training.pid)
    finally:
        for left in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(left).kill()
        training.kill()
        os.close(writer)
