"""Processes that two threads start at the same time do not keep each other's pipes."""

import multiprocessing
import signal
import threading

from support.waiting import PATIENCE

from fusionloader.workers import processes
from fusionloader.workers.processes import BareProcess

FORK = multiprocessing.get_context("fork")
STARTS = 25


def test_a_thread_starts_interpreters_while_workers_are_forked():
    started = []

    def start_some():
        # A module of the standard library whose main takes arguments.
        for _ in range(STARTS):
            started.append(BareProcess("timeit", ["-n1", "-r1", "pass"], (), apart=True))

    thread, forked = threading.Thread(target=start_some, daemon=True), []
    thread.start()
    try:
        while thread.is_alive() and len(forked) < 40 * STARTS:
            forked.append(processes.start(FORK, signal.pause))
        thread.join(PATIENCE / 10)
        assert not thread.is_alive(), f"only {len(started)} of {STARTS} have begun"
        for process in started:
            process.join(PATIENCE)
        assert [process.exitcode for process in started] == [0] * STARTS
    finally:
        for process in (*forked, *started):
            process.kill()
            process.join(PATIENCE)


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
