"""Processes that two threads start at the same time do not keep each other's pipes."""

import multiprocessing.spawn
import os
import resource
import signal
import sys
import threading

import psutil
import pytest
from support.limits import limited
from support.waiting import PATIENCE, is_stopped, wait_until

from fusionloader.system import processes
from fusionloader.system.processes import BareProcess

FORK = multiprocessing.get_context("fork")
STARTS = 25


def of_user_code():
    """A fork of training that says nothing to the loader, and keeps what it has inherited."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return psutil.Process(pid)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "fork",
    [lambda: processes.start(FORK, signal.pause), of_user_code],
    ids=["workers", "user code"],
)
def test_a_thread_starts_interpreters_while_others_are_forked(fork):
    started = []

    def start_some():
        # A module of the standard library whose main takes arguments.
        for _ in range(STARTS):
            started.append(BareProcess("timeit", ["-n1", "-r1", "pass"], (), apart=True))

    thread, forked = threading.Thread(target=start_some, daemon=True), []
    thread.start()
    try:
        while thread.is_alive() and len(forked) < 40 * STARTS:
            forked.append(fork())
        thread.join(PATIENCE / 10)
        assert not thread.is_alive(), f"only {len(started)} of {STARTS} have begun"
        for process in started:
            process.join(PATIENCE)
        assert [process.exitcode for process in started] == [0] * STARTS
    finally:
        for process in (*forked, *started):
            process.kill()
            (process.wait if isinstance(process, psutil.Process) else process.join)(PATIENCE)


@pytest.mark.parametrize("left", range(4))
def test_a_process_for_which_there_are_too_few_descriptors_leaves_none_open(left):
    held = []
    most = max(map(int, os.listdir("/proc/self/fd"))) + 20
    with limited(resource.RLIMIT_NOFILE, most):
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    held.append(os.dup(0))
            for _ in range(left):
                os.close(held.pop())
            before = len(os.listdir("/proc/self/fd")) if left else 0
            with pytest.raises(OSError, match="Too many open files"):
                processes.start(FORK, signal.pause)
            assert not left or len(os.listdir("/proc/self/fd")) == before
        finally:
            for fd in held:
                os.close(fd)


def test_a_forked_process_can_start_others():
    worker = FORK.Process(target=_start_another)
    with processes._starting:  # as when it is forked by `start`
        worker.start()
    worker.join(PATIENCE)
    assert worker.exitcode == 0


def _start_another():
    process = BareProcess("timeit", ["-n1", "-r1", "pass"], (), apart=True)
    process.join(PATIENCE)
    assert process.exitcode == 0


def test_a_process_that_is_stopped_holds_no_other_start(tmp_path, monkeypatch):
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nkill -STOP $$\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o700)
    setup = "#" * (1 << 20)  # more than a pipe holds
    started = []

    def start():
        started.append(BareProcess("timeit", ["-n1", "-r1", "-s", setup, "pass"], (), apart=True))

    before = {child.pid for child in psutil.Process().children()}

    def stopped():
        children = (child.pid for child in psutil.Process().children())
        return [pid for pid in children if pid not in before and is_stopped(pid)]

    with monkeypatch.context() as patched:
        patched.setattr(multiprocessing.spawn, "_python_exe", str(interpreter))
        thread = threading.Thread(target=start)
        thread.start()
        wait_until(stopped)
    (pid,) = stopped()
    try:
        other = threading.Thread(target=_start_another, daemon=True)
        other.start()
        other.join(PATIENCE / 10)
        assert not other.is_alive(), "it waits for the one that is stopped"
    finally:
        psutil.Process(pid).send_signal(signal.SIGCONT)
        thread.join()
    started[0].join(PATIENCE)
    assert started[0].exitcode == 0
