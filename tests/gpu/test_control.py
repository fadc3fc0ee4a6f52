"""Which mode the control of a GPU worker uses, by what training tells it; the worker is none."""

import logging
import multiprocessing
import signal
import time
from types import SimpleNamespace

import pytest
from stand_in_allocator import MIB, StandInAllocator

from fusionloader._native import GpuState
from fusionloader.engine.manager.participant import Hub
from fusionloader.gpu import control
from fusionloader.gpu.control import GpuControl
from fusionloader.gpu.start import GpuOptions

SAMPLES = 256


class Living:
    """A worker process as the control sees it."""

    pid, exitcode = 1, None
    killed = False

    def is_alive(self):
        return True

    def join(self, timeout=None):
        pass

    def kill(self):
        self.killed = True


class Training:
    """A control, and training at steps of one second, by a clock of its own."""

    def __init__(self, block, monkeypatch, allocator=None, start=lambda *_: Living(), ready=True):
        self._now = 100.0
        monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=lambda: self._now))
        self._gpu_worker = block.workers[1]
        if ready:
            self.become_ready()
        options = GpuOptions(start, 64, "auto", lambda: lambda: True, 0, allocator=allocator)
        self.control = GpuControl(options)
        self.control.first = 1
        self.control.start(Hub(block.manager, block.control_fd, block.arena.fd, 4, 4))

    def become_ready(self):
        self._gpu_worker.gpu_ready()

    def look(self, after):
        """Looks at the worker once more, so many seconds later."""
        self._now += after
        self.control.look(None, None)

    def step(self, waits):
        """Trains for a second, then waits for a batch; returns the mode that was in use."""
        mode = self.control.stats()["mode"]
        self.control.asked()
        self._now += 1.0
        if waits:
            self.control.waiting()
            self._now += waits
            self.control.waiting()
        self.control.waited()
        self.control.delivered(SAMPLES, 0, 0)
        return mode


@pytest.fixture
def train(make_control_block, monkeypatch):
    def start(**arguments):
        return Training(make_control_block(2, 4, gpu=1), monkeypatch, **arguments)

    return start


def test_the_log_says_when_the_worker_starts_and_once_when_it_is_ready(train, caplog):
    with caplog.at_level(logging.INFO, "fusionloader.gpu"):
        training = train(ready=False)
        training.step(waits=3.0)
        assert [record.message[:21] for record in caplog.records] == ["the GPU worker starts"]
        training.become_ready()
        training.step(waits=0)
        training.step(waits=0)
    assert [r.message for r in caplog.records[1:]] == ["the GPU worker is ready after 5.0 s"]


def test_the_profiling_ends_at_once_where_training_waits_for_no_batch(train):
    training = train()
    for _ in range(7):  # the first one shows when the second begins
        assert training.step(waits=0) == "off"
    assert training.control.stats()["profiling"] is False


def test_where_training_waits_every_mode_is_profiled_within_40_steps(train):
    training = train()
    modes = {training.step(waits=0.1) for _ in range(40)}
    assert modes == {"off", "temporal", "spatial"}
    assert training.control.stats()["profiling"] is False


def test_a_pause_between_epochs_is_no_waiting(train):
    training = train()
    training.step(waits=50)
    training.control.epoch_ended()
    for _ in range(7):
        training.step(waits=0)
    assert training.control.stats()["profiling"] is False


def test_spatial_sharing_is_not_tried_where_the_peaks_of_memory_do_not_fit(train):
    allocator = StandInAllocator((200 * MIB, 1000 * MIB))  # 800 MiB are the worker's, and contexts
    training = train(allocator=allocator)
    allocator.highest = 150 * MIB
    modes = [training.step(waits=0.1) for _ in range(8)]
    assert modes[-1] == "temporal"
    allocator.highest = 201 * MIB
    modes = {training.step(waits=0.1) for _ in range(60)}
    assert modes == {"off", "temporal"}


def test_what_the_worker_held_only_while_it_worked_counts(train):
    allocator = StandInAllocator((900 * MIB, 1000 * MIB))
    allocator.highest = 500 * MIB
    training = train(allocator=allocator)
    for _ in range(8):
        training.step(waits=0.1)
    allocator.device_bytes = (450 * MIB, 1000 * MIB)
    training.control.waiting()
    training.control.waited()
    allocator.device_bytes = (900 * MIB, 1000 * MIB)
    assert "spatial" not in {training.step(waits=0.1) for _ in range(40)}


def test_memory_is_looked_at_once_for_each_batch_however_often_a_wait_is_woken(train, monkeypatch):
    """Each look takes up to a millisecond, of which a mode would seem slower than it is."""
    allocator, looks = StandInAllocator(), []
    look = allocator.device_memory
    monkeypatch.setattr(allocator, "device_memory", lambda: looks.append(1) or look())
    training = train(allocator=allocator)
    training.step(waits=0)
    looks.clear()
    for _ in range(20):
        for _ in range(9):
            training.control.waiting()
        training.step(waits=0.1)
    assert len(looks) == 20
    assert {training.step(waits=0.1) for _ in range(40)} == {"off", "temporal", "spatial"}


def test_no_memory_is_looked_at_while_a_graph_is_captured(train):
    allocator = StandInAllocator()
    allocator.captures = True
    allocator.device_memory = None
    training = train(allocator=allocator)
    assert {training.step(waits=0.1) for _ in range(40)} == {"off", "temporal", "spatial"}


def test_a_launch_is_too_long_only_by_the_time_in_which_training_looks_at_it(
    make_control_block, monkeypatch
):
    block, process = make_control_block(2, 4, gpu=1), Living()
    training = Training(block, monkeypatch, start=lambda *_: process)
    training.look(after=1)
    block.publish(0, samples=8)
    block.manager.set_gpu(GpuState.OPEN, 1)
    assert block.workers[1].claim_next(1) is not None
    training.look(after=1000)  # training has validated, and comes back when a launch has begun
    for _ in range(119):
        training.look(after=0.5)
    training.look(after=1000)  # and again, within a launch
    for _ in range(120):
        training.look(after=0.5)
    assert not process.killed
    training.look(after=0.5)
    assert process.killed


def test_a_worker_that_is_still_being_built_does_not_delay_the_end(train):
    """It would be killed after seconds of waiting for it to look."""
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(3600,))
    process.start()
    training = train(start=lambda *_: process, ready=False)
    training.control.end()
    assert process.exitcode == -signal.SIGTERM
