"""A job's end of its connection to the coordinator."""

import os
import socket

import pytest
from jobs import alone, digest, make_loader

from fusionloader.sharing.jobs import connection as connections
from fusionloader.sharing.jobs import payloads
from fusionloader.sharing.jobs.connection import CoordinatorConnection
from fusionloader.sharing.jobs.group_manager import GroupManager


@pytest.fixture
def ends():
    """A connection, and the coordinator's end of it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = CoordinatorConnection(ours)
    yield connection, theirs
    connection.close()
    theirs.close()


def done(number, lease):
    """The message that a mini-batch is complete."""
    zeros = dict.fromkeys(("slot", "offset", "nbytes", "failed"), 0)
    empty = {name: [] for name in ("made", "waits", "given_up", "jobs")}
    return {"done": number, "lease": lease, **zeros, **empty}


def test_what_was_sent_of_an_earlier_epoch_is_not_taken_for_the_next_one_s(ends):
    connection, coordinator = ends
    earlier = [done(0, 10), done(1, 11), {"left": "it held the others up"}]
    earlier.append({"differs": 2, "there": ""})
    for fields in [*earlier, {"began": True, "jobs": []}, done(1, 12)]:
        payloads.send(coordinator, fields)
    connection.ask({"do": "begin"})
    connection.receive(0.0)
    assert not connection.is_prepared(0)
    assert connection.prepared(1).lease == 12
    assert sorted(connection.released) == [10, 11]
    assert (connection.left, connection.differs) == ("", None)


def test_a_job_says_that_the_coordinator_is_silent_and_not_that_it_has_ended(ends, monkeypatch):
    connection, _ = ends
    monkeypatch.setattr(connections, "_PATIENCE_SECONDS", 0)
    with pytest.raises(connections.LeftGroup, match="the coordinator has answered nothing for 0 s"):
        connection.ask({"do": "begin"})


def test_a_job_leaves_a_coordinator_that_reads_nothing(ends, monkeypatch):
    connection, _ = ends
    monkeypatch.setattr(connections, "_PATIENCE_SECONDS", 0)
    while connection.is_open:
        connection.send({"do": "step"}, bytes(4096))
    assert connection.left == "the coordinator has read nothing for 0 s"


def test_what_follows_the_answer_in_the_same_read_is_kept(ends):
    connection, coordinator = ends
    for fields in [{"began": True, "jobs": []}, done(0, 10), {"left": "it was stopped"}]:
        payloads.send(coordinator, fields)
    connection.receive(0.0)  # reads all of them
    connection.ask({"do": "begin"})
    assert connection.prepared(0).lease == 10
    assert connection.left == "it was stopped"


def test_a_batch_whose_slot_may_be_reused_is_made_again(word, train_set, monkeypatch):
    """The connection ends with a submission, between taking a batch and mapping its slot."""
    options = {"prefetch_factor": 3}
    (expected,) = alone(train_set, **options)
    submit = GroupManager.submit

    def lose_connection(manager, batch):
        if batch.number == 6:
            manager.connection.close("a message could not be sent")
            slots = manager._membership.data_fd
            os.pwrite(slots, bytes(os.fstat(slots).st_size), 0)
        submit(manager, batch)

    monkeypatch.setattr(GroupManager, "submit", lose_connection)
    loader = make_loader(train_set, word, options)
    assert [digest(batch) for batch in loader] == expected
    shared = loader.stats().shared_prep
    assert shared.alone_batches + shared.shared_batches == len(expected)
    loader.close()
