"""Numbers of workers that are used again; the test itself is the job and its workers."""

import os
import socket
import time

import pytest

from fusionloader import _native
from fusionloader._native import End, TinyBatchState
from fusionloader.sharing.jobs.group import Group
from fusionloader.sharing.jobs.member import EpochKey, GroupMember
from fusionloader.sharing.jobs.sample_lists import SampleLists
from fusionloader.sharing.jobs.staging import Staging
from fusionloader.sharing.jobs.worker_records import WorkerRecords
from fusionloader.system.fd_messages import FdMessage

KEY = EpochKey(epoch=0, seed=1, first=0, total=10)
SAMPLES = SampleLists([5, 6, 7, 8], [5, 6, 7, 8], [0] * 4, [0, 1, 2, 3])
JOIN = {"do": "join", "equal": {}, "leaves": [4096], "tiny_size": 2, "group_size": 0}


class Job:
    """A group, and the only job in it, whose workers may have the numbers 0 to 3."""

    def __init__(self):
        self.watched = {}  # handlers, by descriptor
        self.records = WorkerRecords(self.watched.__setitem__, self.watched.pop)
        self.staging = Staging(self.records)
        self.group = Group(self.staging, self.records)
        here, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(False)
        self.member = GroupMember(here, os.getpid(), -1)
        self.group.members[self.member.number] = self.member
        self.ask({**JOIN, "workers": 4, "in_flight": 2, "limit": None})

    def ask(self, fields, fds=()):
        self.group.handle(self.member, FdMessage(fields, b"", fds), time.monotonic())

    def start_worker(self, number):
        """Returns a worker of that number, and its end of the pipe, which is closed at its end."""
        read, write = os.pipe()
        self.ask({"do": "worker", "number": number}, (read,))
        worker = _native.WorkerQueue(*self.staging.fds, number)
        worker.announce(os.getpid())
        return worker, write

    def handle_ends(self):
        """Does what the coordinator does when pipes are closed."""
        for handler in list(self.watched.values()):
            handler()


@pytest.fixture
def job():
    made = Job()
    yield made
    made.group.remove(made.member)
    made.member.close()
    made.staging.close()
    made.socket.close()


def test_a_number_is_free_for_another_worker_before_the_end_of_the_first_was_noticed(job):
    batch = job.staging.publish(KEY, 0, SAMPLES)
    first, pipe = job.start_worker(2)
    first.claim(End.SMALL, 0, 1)
    os.close(pipe)
    second, pipe = job.start_worker(2)
    job.handle_ends()
    assert job.records.find(2) is not None
    second.claim(End.SMALL, 0, 1)
    os.close(pipe)
    job.handle_ends()
    third, pipe = job.start_worker(1)
    while (claim := third.claim(End.SMALL, 0, 1)) is not None:
        third.finish(claim, claim.first, TinyBatchState.COMPLETED)
    assert job.staging.completed() == [batch]
    os.close(pipe)


def test_a_job_has_no_workers_with_the_numbers_of_other_jobs(job):
    with pytest.raises(ValueError, match=r"worker 4 is none of range\(0, 4\)"):
        job.start_worker(4)
