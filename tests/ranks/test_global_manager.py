"""The global manager as a process, with queues and workers that the test makes."""

import logging
import os
import pickle
import re
import resource
import secrets
import subprocess
import sys
import threading
import time

import psutil
import pytest
from support.control_blocks import ControlBlock
from support.mounts import IN_PID_NAMESPACE
from support.other_users import as_root
from support.waiting import PATIENCE, gone, wait_until

from fusionloader import _native
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.sharing.ranks import membership
from fusionloader.sharing.ranks.discovery import JobRanks
from fusionloader.sharing.ranks.global_manager import GlobalManagerConfig
from fusionloader.sharing.ranks.membership import GUEST_SLOTS, Membership
from fusionloader.sharing.ranks.sharing_offer import SharingOffer
from fusionloader.system import fd_messages
from fusionloader.system.processes import BareProcess
from fusionloader.transforms.executors.native import make_executor
from fusionloader.workers.assignments import PlanAssignments


class Manager:
    """A global manager at an unused address."""

    def __init__(self, ranks=2):
        self.address = f"fusionloader-test-{secrets.token_hex(8)}"
        config = GlobalManagerConfig(self.address, ranks)
        self.process = BareProcess(
            "fusionloader.sharing.ranks.global_manager", config, (), apart=True
        )
        wait_until(self.answers)

    def answers(self):
        connection = fd_messages.connect(self.address, 1.0)
        if connection is not None:
            connection.close()
        return connection is not None

    def close(self):
        self.process.kill()
        self.process.join(PATIENCE)


class FakeRank(ControlBlock):
    """A queue that is offered, with one worker as a thread, or none."""

    def __init__(self, manager, rank, images, with_worker, ranks=2, **kind):
        compiled = compile_dataset(images, "exact")
        self.plan, self.executor = compiled.plan, make_executor(compiled.plan)
        paths, targets = zip(*compiled.samples(), strict=True)
        self.table = DatasetTable.of_files(paths, targets)
        sharing_offer = SharingOffer(
            {"plan": "p", "dataset": "d", **kind},
            pickle.dumps(self.plan),
            self.table.fd,
            self.table.nbytes,
        )
        self.membership = Membership(JobRanks(rank, ranks, manager.address), 0)
        super().__init__(1, 8, GUEST_SLOTS, 1, self.membership.event_fd)
        self.last = -1  # mini-batch
        self.membership.join(sharing_offer, self.control_fd, self.arena.fd)
        self.thread = threading.Thread(target=self.work, args=(manager.address,))
        if with_worker:
            self.thread.start()

    def work(self, address):
        memory = _native.SharedMapping(self.table.fd, 0, self.table.nbytes)
        event_fd = self.membership.event_fd
        loop = _native.PlanWorker(self.workers[0], memory, self.executor, os.getppid(), event_fd)
        assignments = PlanAssignments(loop, address, self.plan, self.executor)
        while loop.run() is _native.WorkerEvent.ASSIGNMENT:
            assignments.follow()

    def publish(self, samples=4):
        self.last += 1
        nbytes = samples * (self.executor.result_bytes + 8) + 64
        super().publish(self.last, samples, payload_bytes=nbytes, number=self.last)

    def done(self):
        return self.status(self.last).done

    def deliver(self):
        self.manager.deliver_until(self.last + 1)
        for slots in (self.slot_of, self.payload_of):
            self.slots.release(slots[self.last])

    def close(self):
        self.manager.stop()
        if self.thread.is_alive():
            self.thread.join(PATIENCE)
        self.membership.close()
        super().close()


@pytest.fixture
def manager():
    made = Manager()
    yield made
    made.close()


@pytest.fixture
def fake_rank(manager, make_control_block, train_set):
    def make(rank, with_worker=False, **changes):
        return make_control_block(manager, rank, train_set, with_worker, kind=FakeRank, **changes)

    return make


@pytest.fixture
def warned(monkeypatch):
    """The warnings of ranks, once each."""
    texts = set()
    monkeypatch.setattr(membership, "_said", texts)
    return texts


def test_an_idle_worker_does_the_mini_batch_of_another_rank(fake_rank):
    fake_rank(0, with_worker=True)
    destination = fake_rank(1)
    destination.publish()
    wait_until(destination.done)
    assert sum(worker.samples for worker in destination.manager.workers(1)) == 4


def test_both_ranks_log_a_decision_at_level_debug(fake_rank, caplog):
    caplog.set_level(logging.DEBUG, "fusionloader.ranks")
    source, destination = fake_rank(0, with_worker=True), fake_rank(1)
    destination.publish()
    moved = "YIELD 1 from rank 0, BORROW 1 by rank 1 until mini-batch 0"

    def logged_by(rank):
        caplog.clear()
        rank.membership.poll()
        return moved in caplog.messages

    wait_until(lambda: logged_by(source))
    wait_until(lambda: logged_by(destination))


def test_a_worker_returns_when_its_own_rank_has_work(fake_rank):
    source, destination = fake_rank(0, with_worker=True), fake_rank(1)
    for _ in range(3):
        destination.publish()
        source.publish()
        wait_until(lambda: destination.done() and source.done())
    assert source.manager.worker(0).samples == 12


def test_an_assignment_that_comes_to_nothing_is_repeated(fake_rank, monkeypatch):
    fetched, fetch = [], PlanAssignments._fetch

    def times_out(assignments, member):
        fetched.append(member)
        if len(fetched) > 2:
            return fetch(assignments, member)
        time.sleep(0.5)  # the timeout of a fetch; the manager has assigned again by then
        return None

    monkeypatch.setattr(PlanAssignments, "_fetch", times_out)
    fake_rank(0, with_worker=True)
    destination = fake_rank(1)
    destination.publish()
    wait_until(destination.done)


def test_it_wakes_for_events_alone(fake_rank, manager):
    fake_rank(0, with_worker=True)
    destination = fake_rank(1)
    process = psutil.Process(manager.process.pid)

    def wake_ups():
        return process.num_ctx_switches().voluntary

    def sleeps():
        before = wake_ups()
        time.sleep(0.5)  # ten times its timeout while workers are idle beside unclaimed work
        return wake_ups() == before

    for _ in range(3):
        wait_until(sleeps)
        before = wake_ups()
        destination.publish(1)
        wait_until(destination.done)
        destination.deliver()
        wait_until(lambda before=before: wake_ups() > before)  # counted as it goes to sleep again


@pytest.mark.parametrize("part", ["plan", "dataset"])
def test_ranks_that_differ_share_no_workers_and_warn(fake_rank, warned, part):
    source = fake_rank(0, with_worker=True)
    destination = fake_rank(1, **{part: "another"})
    destination.publish()

    def both_have_warned():
        source.membership.poll()
        destination.membership.poll()
        return len(warned) == 2

    wait_until(both_have_warned)
    expected = f"rank 0 has another {part}: no workers are shared with it"
    assert expected in warned
    assert not destination.done()


def test_another_number_of_ranks_is_refused(fake_rank, warned):
    odd = fake_rank(0, ranks=3)
    wait_until(lambda: odd.membership.poll() or warned)
    assert "LOCAL_WORLD_SIZE is 3, and 2 where" in warned.pop()


def test_another_version_is_refused(fake_rank, warned, monkeypatch):
    monkeypatch.setattr(fd_messages, "package_version", lambda: "0.0.1")
    odd = fake_rank(0)
    wait_until(lambda: odd.membership.poll() or warned)
    assert "has fusionloader 0.0.1, the global manager" in warned.pop()


@pytest.mark.parametrize(
    "malformed",
    [
        b"",
        b"{",
        b"[]\n",
        b'{"do": "join"}\n',
        b'{"do": "fetch"}\n',
        b'{"do": "fetch", "member": []}\n',
        b"\xff" * 1000,
    ],
)
def test_malformed_messages_do_not_end_it(manager, fake_rank, malformed):
    fake_rank(0)
    connection = fd_messages.connect(manager.address, 1.0)
    with connection:
        connection.send(malformed)
    assert manager.answers() and manager.process.is_alive()


def test_a_manager_without_free_descriptors_recovers(manager, fake_rank):
    _, hard = resource.prlimit(manager.process.pid, resource.RLIMIT_NOFILE)
    opened = len(os.listdir(f"/proc/{manager.process.pid}/fd"))
    resource.prlimit(manager.process.pid, resource.RLIMIT_NOFILE, (opened + 4, hard))
    waiting = [fd_messages.connect(manager.address, PATIENCE) for _ in range(8)]
    wait_until(lambda: "refused" in fd_messages.receive(waiting[-1]).fields)
    for connection in waiting:
        connection.close()
    resource.prlimit(manager.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    fake_rank(0, with_worker=True)
    busy = fake_rank(1)
    busy.publish()
    wait_until(busy.done)


def test_of_two_managers_at_one_address_one_remains(manager, fake_rank):
    fake_rank(0)  # without a member it would end soon
    config = GlobalManagerConfig(manager.address, 2)
    second = BareProcess("fusionloader.sharing.ranks.global_manager", config, (), apart=True)
    second.join(PATIENCE)
    assert second.exitcode == 0 and manager.process.is_alive()


def test_it_ends_after_the_last_rank(manager, train_set):
    rank = FakeRank(manager, 0, train_set, with_worker=False)
    wait_until(manager.answers)
    rank.close()
    wait_until(lambda: gone(manager.process.pid))


KIND = """
from fusionloader.transforms.plan.stages import Plan, Resize
from fusionloader.sharing.ranks.discovery import JobRanks
from fusionloader.sharing.ranks.sharing_offer import SharingOffers
from fusionloader.cache.tiers.dataset_table import DatasetTable

plan, table = Plan((Resize(8, 8, "box"),), None, 8, 8), DatasetTable.of_files(["1.jpg"], [0])
print(*sorted(SharingOffers(JobRanks(0, 2, "name")).make(plan, table).kind.items()))
"""


@as_root
def test_ranks_in_containers_of_their_own_share_no_workers():
    """Whether a process there has died cannot be told here."""
    run = [sys.executable, "-c", KIND]
    said = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in (run, [*IN_PID_NAMESPACE, *run])
    ]
    here, there = (dict(re.findall(r"\('([\w ]+)', '(\w+)'\)", each)) for each in said)
    assert {name for name in here if here[name] != there[name]} == {"PID namespace"}
