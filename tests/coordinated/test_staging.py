"""The staging area; the test itself is its workers, and a stopped process stands for one."""

import os
import signal
import subprocess
import types

import pytest
from support.waiting import wait_until

from fusionloader import _native
from fusionloader._native import End, TinyBatchState
from fusionloader.sharing.jobs.agreement import WHOLE
from fusionloader.sharing.jobs.member import EpochKey
from fusionloader.sharing.jobs.sample_lists import SampleLists
from fusionloader.sharing.jobs.staging import RowSettings, Staging
from fusionloader.sharing.jobs.worker_records import WorkerRecords
from fusionloader.system.processes import is_stopped
from fusionloader.system.shm.objects import SharedMemoryExhausted
from fusionloader.workers import messages
from fusionloader.workers.messages import Failure, SampleSkipped, TinyBatchFailed

KEY = EpochKey(epoch=0, seed=1, first=0, total=10)
SAMPLES = SampleLists([5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [0] * 5, [0, 1, 2, 3, 4])


class Area:
    """A staging area and two workers of two jobs."""

    def __init__(self):
        watched = {}
        self.records = WorkerRecords(watched.__setitem__, watched.pop)
        self.staging = Staging(self.records)
        self.staging.settings = RowSettings(tiny_size=2, group_size=0, leaves=(4096, 8))
        self.members = [types.SimpleNamespace(pid=pid, joined=True) for pid in (111, 222)]
        self.pipes, self.workers = [], []
        for number, member in enumerate(self.members):
            read, write = os.pipe()
            self.records.add(number, member, read, self.staging.recover)
            self.pipes.append(write)
            self.workers.append(_native.WorkerQueue(*self.staging.fds, number))
            self.workers[-1].announce(os.getpid())

    def finish_all(self, number):
        """Has a worker do all that it can claim."""
        while (claim := self.workers[number].claim(End.SMALL, 0, 1)) is not None:
            self.workers[number].finish(claim, claim.first, TinyBatchState.COMPLETED)

    def look_twice(self):
        self.staging.look_for_stopped()
        self.staging.look_for_stopped()

    def close(self):
        self.staging.close()
        for pipe in self.pipes:
            os.close(pipe)


@pytest.fixture
def area():
    made = Area()
    yield made
    made.close()


@pytest.fixture
def stopped():
    """The pid of a process that a signal has stopped."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
        yield process
        process.kill()


def test_a_mini_batch_is_complete_when_its_tiny_batches_are(area):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    claim = area.workers[0].claim(End.SMALL, 0, 1)
    assert area.staging.completed() == []
    area.workers[0].finish(claim, claim.first, TinyBatchState.COMPLETED)
    area.finish_all(1)
    assert area.staging.completed() == [batch]
    assert batch.made == {111: 2, 222: 3}


def test_what_a_stopped_worker_holds_is_prepared_elsewhere(area, stopped):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    later = area.staging.publish(KEY, 1, SAMPLES)
    claim = area.workers[0].claim(End.SMALL, 0, 1)
    area.workers[0].announce(stopped.pid)
    rows = batch.payload.number
    area.look_twice()
    assert batch.payload.number != rows
    again = area.workers[1].claim(End.SMALL, 0, 1)  # before the later one, from its beginning
    assert (again.sequence, again.payload) == (batch.sequence, batch.payload.number)
    area.workers[1].finish(again, again.first, TinyBatchState.COMPLETED)
    area.finish_all(1)
    assert area.staging.completed() == [batch, later]
    for each in (batch, later):
        area.staging.recycle(each)
    used = {area.staging.publish(KEY, number, SAMPLES).payload.number for number in range(2, 6)}
    assert rows not in used  # the worker may wake up and write there
    area.workers[0].finish(claim, claim.first, TinyBatchState.COMPLETED)
    area.staging.look_for_stopped()
    assert area.staging.publish(KEY, 6, SAMPLES).payload.number == rows


def test_the_slots_of_a_stopped_worker_that_is_killed_are_used_again(area, stopped):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    area.workers[0].claim(End.SMALL, 0, 1)
    area.workers[0].announce(stopped.pid)
    rows = batch.payload.number
    area.look_twice()
    area.staging.recover(area.records.find(0))
    area.staging.look_for_stopped()
    assert area.staging.publish(KEY, 1, SAMPLES).payload.number == rows


def test_a_worker_that_takes_long_keeps_what_it_holds(area):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    claim = area.workers[0].claim(End.SMALL, 0, 1)
    rows = batch.payload.number
    area.look_twice()
    assert batch.payload.number == rows
    area.members[0].joined = False  # unless its job has left
    area.look_twice()
    assert batch.payload.number != rows
    assert not area.workers[0].finish(claim, 2, TinyBatchState.COMPLETED)


def test_a_worker_that_ends_leaves_its_tiny_batches_to_others(area):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    area.workers[0].claim(End.SMALL, 0, 2)
    area.staging.recover(area.records.find(0))
    area.finish_all(1)
    assert area.staging.completed() == [batch]
    assert batch.made == {222: 5}


def test_a_tiny_batch_that_kills_its_workers_is_given_up(area):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    for _ in range(3):
        area.workers[0].claim(End.SMALL, 0, 3)  # all, and then what comes back first
        area.staging.recover(area.records.find(0))
        read, write = os.pipe()
        area.pipes.append(write)
        area.records.add(0, area.members[0], read, area.staging.recover)
    area.finish_all(1)
    assert area.staging.completed() == [batch]
    assert batch.given_up == [(0, os.getpid())]


def test_a_mini_batch_that_nobody_needs_is_not_prepared(area):
    unwanted = area.staging.publish(KEY, 0, SAMPLES)
    claim = area.workers[0].claim(End.SMALL, 0, 1)
    rows = unwanted.payload.number
    area.staging.recycle(unwanted)
    assert area.workers[1].claim(End.SMALL, 0, 1) is None
    assert area.staging.publish(KEY, 1, SAMPLES).payload.number != rows
    area.workers[0].finish(claim, claim.first, TinyBatchState.COMPLETED)
    area.staging.look_for_stopped()
    assert area.staging.publish(KEY, 2, SAMPLES).payload.number == rows


def test_tiny_batches_that_a_stopped_claim_left_out_are_found(area):
    area.staging.publish(KEY, 0, SAMPLES)
    # What is left of a claim whose worker was stopped between its two steps: an empty middle.
    claim = area.workers[0].claim(End.SMALL, 0, 3)
    for tiny_batch in range(3):
        area.workers[0].give_back(claim, tiny_batch)
    area.look_twice()
    area.finish_all(1)
    assert len(area.staging.completed()) == 1


def failed(batch, position, text="it cannot be read"):
    return TinyBatchFailed(batch.sequence, position // 2, Failure(None, text, position))


def test_what_a_worker_that_died_has_reported_is_void_when_it_is_done_again(area):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    area.workers[0].claim(End.SMALL, 0, 2)
    messages.send(area.pipes[0], failed(batch, 2))
    messages.send(area.pipes[0], SampleSkipped(batch.sequence, 0, None, Failure(None, "bad", 0)))
    area.staging.receive()
    assert (len(batch.failures), len(batch.skipped)) == (1, 1)
    area.staging.recover(area.records.find(0))
    area.finish_all(1)
    assert area.staging.completed() == [batch]
    assert (batch.reports, batch.failed) == (({}, {}, {}), 0)


def test_what_was_reported_of_slots_that_were_replaced_is_void(area, stopped):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    area.workers[0].claim(End.SMALL, 0, 1)
    slow = area.workers[1].claim(End.SMALL, 0, 1)
    area.workers[0].announce(stopped.pid)
    messages.send(area.pipes[0], failed(batch, 0))
    area.staging.receive()
    area.look_twice()
    messages.send(area.pipes[1], failed(batch, 2))  # of the old slots, too
    area.workers[1].finish(slow, slow.first, TinyBatchState.FAILED)
    again = area.workers[1].claim(End.SMALL, 0, 3)
    messages.send(area.pipes[1], failed(batch, 4))
    for tiny_batch, state in enumerate([TinyBatchState.COMPLETED] * 2 + [TinyBatchState.FAILED]):
        area.workers[1].finish(again, tiny_batch, state)
    assert area.staging.completed() == [batch]
    assert [failure.row for failure in batch.failures.values()] == [4]
    assert batch.failed == 1


def test_a_failure_that_nobody_has_reported_is_counted(area):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    claim = area.workers[0].claim(End.SMALL, 0, 1)
    area.workers[0].finish(claim, claim.first, TinyBatchState.FAILED)
    area.finish_all(1)
    assert area.staging.completed() == [batch]
    assert (batch.reports, batch.failed) == (({}, {}, {}), 1)


def test_what_is_given_back_of_an_unwanted_mini_batch_is_for_nobody(area):
    unwanted = area.staging.publish(KEY, 0, SAMPLES)
    area.workers[1].claim(End.SMALL, 0, 1)
    slot = unwanted.descriptor
    area.staging.recycle(unwanted)
    # The worker gives it back, and is stopped before it sees that nobody wants the mini-batch.
    words = slot.map.cast("B").cast("Q")
    active, waiting = (1 << 16) | TinyBatchState.ACTIVE.value, TinyBatchState.WAITING.value
    place = next(place for place, word in enumerate(words) if word == active)
    words[place] = waiting
    assert area.staging.queue.status(slot.number).waiting == 1
    area.staging.look_for_stopped()
    assert area.staging.queue.status(slot.number).waiting == 0
    assert area.staging.publish(KEY, 1, SAMPLES).payload.number == unwanted.payload.number


def exhausted(_):
    raise SharedMemoryExhausted("too little memory")


def test_rows_are_free_again_when_there_is_no_room_for_a_descriptor(area, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(area.staging._descriptors, "acquire", exhausted)
        for _ in range(3):
            with pytest.raises(SharedMemoryExhausted):
                area.staging.publish(KEY, 0, SAMPLES)
    assert area.staging.publish(KEY, 0, SAMPLES).payload.number == 0


def test_a_mini_batch_of_a_stopped_worker_waits_for_memory(area, stopped, monkeypatch):
    batch = area.staging.publish(KEY, 0, SAMPLES)
    area.workers[0].claim(End.SMALL, 0, 1)
    area.workers[0].announce(stopped.pid)
    rows = batch.payload.number

    with monkeypatch.context() as patched:
        patched.setattr(area.staging, "_acquire", exhausted)
        area.look_twice()
    assert batch.payload.number == rows
    area.look_twice()
    assert batch.payload.number != rows


def test_a_slot_is_not_exchanged_under_a_worker_that_writes_to_it(area, monkeypatch):
    area.staging.settings = RowSettings(WHOLE, 0, ())
    batch = area.staging.publish(KEY, 0, SAMPLES)
    first = area.workers[0].claim(End.SMALL, 0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(area.staging._rows, "acquire", exhausted)
        messages.send(area.pipes[0], messages.SlotWanted(first.sequence, 100_000))
        area.staging.receive()
        area.staging.recover(area.records.find(0))
    claim = area.workers[1].claim(End.SMALL, 0, 1)
    area.staging.look_for_stopped()
    assert claim.payload is None  # it has not asked for one
    for _ in range(2):
        messages.send(area.pipes[1], messages.SlotWanted(claim.sequence, 100_000))
    area.staging.receive()
    assert claim.payload == batch.payload.number == 1


class Finishing:
    """A queue in which a worker finishes its claim while the coordinator looks at the states."""

    def __init__(self, queue, finish):
        self._queue, self._finish = queue, finish

    def __getattr__(self, name):
        found = getattr(self._queue, name)
        if name != "in_state":
            return found

        def look(*arguments):
            seen = found(*arguments)
            if self._finish is not None:
                self._finish()
                self._finish = None
            return seen

        return look


def test_a_message_of_a_whole_batch_counts_while_its_worker_finishes(area):
    area.staging.settings = RowSettings(WHOLE, 0, ())
    batch = area.staging.publish(KEY, 0, SAMPLES)
    claim = area.workers[0].claim(End.SMALL, 0, 1)
    messages.send(area.pipes[0], messages.SamplesSpilled(claim.sequence, claim.first, b"batch"))

    def finish():
        area.workers[0].finish(claim, claim.first, TinyBatchState.SPILLED)

    area.staging.queue = Finishing(area.staging.queue, finish)
    area.staging.receive()
    assert area.staging.completed() == [batch]
    assert batch.spilled == {claim.first: b"batch"}
