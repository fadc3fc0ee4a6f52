"""Jobs, workers and the coordinator that are killed or stopped: the others have their batches."""

import os
import select
import signal

import psutil
import pytest
from jobs import all_rest, alone, coordinators, left, together
from support.other_users import NOBODY, as_root, begun_as_nobody, exit_code_of
from support.waiting import gone, wait_until

from fusionloader.sharing.jobs.address import coordinator_address
from fusionloader.system import fd_messages

FEW = {"prefetch_factor": 2}


@pytest.fixture
def many(long_set):
    """Arguments for an epoch of more than a hundred batches, few of them staged."""
    return {**FEW, **long_set}


def begun(group, count, **options):
    """Jobs of a group that have had their first batch, and what an epoch has."""
    jobs = group(count, **options)
    for job in jobs:
        job.tell("take", 1)
    assert len({tuple(job.answer()) for job in jobs}) == 1
    return jobs


@pytest.mark.parametrize("with_workers", [False, True])
@pytest.mark.few(1)
def test_a_killed_job_delays_nobody(group, train_set, many, with_workers):
    victim, *others = begun(group, 3, **many)
    expected = alone(train_set, **many)[0]
    workers = victim.ask("workers") if with_workers else []
    for job in others:
        job.tell("take", 20)
    victim.signal(signal.SIGKILL, workers)
    assert [job.answer() for job in others] == [expected[1:21]] * 2
    assert all_rest(others) == [expected[21:]] * 2
    assert left(others) == []


@pytest.mark.parametrize("with_workers", [False, True])
@pytest.mark.few(1)
def test_a_stopped_job_leaves_and_goes_on_alone_when_it_wakes_up(
    group, train_set, many, with_workers
):
    victim, *others = begun(group, 3, **many)
    expected = alone(train_set, **many)[0]
    workers = victim.ask("workers") if with_workers else []
    victim.signal(signal.SIGSTOP, workers)
    assert together(others, 30) == [expected[1:31]] * 2
    victim.signal(signal.SIGCONT, workers)
    assert all_rest([victim]) == [expected[1:]]
    assert all_rest(others) == [expected[31:]] * 2
    assert victim.ask("stats").alone_batches > 0
    assert left(others) == []


def test_a_stopped_worker_spoils_no_batch_when_it_wakes_up(group, train_set, many):
    jobs = begun(group, 2, **many)
    expected = alone(train_set, **many)[0]
    workers = jobs[0].ask("workers")
    place = 1
    for _ in range(6):
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        assert together(jobs, 5) == [expected[place : place + 5]] * 2
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        assert together(jobs, 5) == [expected[place + 5 : place + 10]] * 2
        place += 10
    assert all_rest(jobs) == [expected[place:]] * 2
    assert left(jobs) == []


def test_a_job_that_takes_nothing_is_not_waited_for(group, train_set, many):
    slow, *others = begun(group, 3, **many)
    expected = alone(train_set, **many)[0]
    assert together(others, 30) == [expected[1:31]] * 2
    assert slow.rest() == expected[1:]
    stats = slow.ask("stats")
    assert "took no mini-batch" in stats.why_alone and stats.alone_batches > 0
    assert all_rest(others) == [expected[31:]] * 2
    assert slow.pid in others[0].ask("stats").waited_for


def test_killed_workers_are_replaced_and_lose_no_sample(group, train_set, many):
    jobs = begun(group, 2, **many)
    expected = alone(train_set, **many)[0]
    found = [[], []]
    for _ in range(4):
        for job in jobs:
            for worker in job.ask("workers"):
                os.kill(worker, signal.SIGKILL)
        for batches, more in zip(found, together(jobs, 6), strict=True):
            batches += more
    for batches, more in zip(found, all_rest(jobs), strict=True):
        batches += more
    assert found == [expected[1:]] * 2
    assert left(jobs) == []


def test_without_the_coordinator_every_job_goes_on_alone(group, word, train_set, many):
    jobs = begun(group, 2, **many)
    expected = alone(train_set, epochs=6, **many)
    address = coordinator_address(word)
    (pid,) = {each.pid for each in coordinators(address)} - {None, *(job.pid for job in jobs)}
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    assert all_rest(jobs) == [expected[0][1:]] * 2
    assert all("coordinator has ended" in job.ask("stats").why_alone for job in jobs)
    for batches in expected[1:]:  # with another coordinator, unless one of them comes too late
        assert all_rest(jobs) == [batches] * 2
        if all(job.ask("stats").shared_batches > 1 for job in jobs):
            return
    raise AssertionError([job.ask("stats") for job in jobs])


@as_root
def test_another_user_who_has_bound_the_name_delays_no_epoch(group, word, train_set):
    name = coordinator_address(word)
    over, told = os.pipe()

    def bind():
        """Listens until it is told; returns how many have come."""
        listener = fd_messages.listen(name, 8)
        count = 0
        while over not in select.select([listener, over], [], [])[0]:
            listener.accept()
            count += 1
        return count

    pid = begun_as_nobody(bind)
    wait_until(lambda: coordinators(name))
    job = group()
    for batches in alone(train_set, epochs=3):
        assert job.rest() == batches
    stats = job.ask("stats")
    os.write(told, b".")
    assert exit_code_of(pid) == 1  # it was asked for once, and no coordinator was started
    assert f"process {pid} of user {NOBODY} has bound the name" in stats.why_alone
    assert stats.alone_batches > 0 and stats.shared_batches == 0


def test_nothing_is_left_of_a_killed_group(group, word, train_set, many):
    jobs = begun(group, 2, **many)
    workers = [pid for job in jobs for pid in job.ask("workers")]
    for job in jobs:
        job.signal(signal.SIGKILL)
    wait_until(lambda: all(map(gone, workers)))
    wait_until(lambda: not coordinators(coordinator_address(word)))


def test_a_job_that_joins_in_mid_epoch_delays_nobody(group, train_set, many):
    jobs = begun(group, 2, **many)
    expected = alone(train_set, **many)[0]
    assert together(jobs, 10) == [expected[1:11]] * 2
    late = group(**many)
    for job in jobs:
        job.tell("rest")
    assert late.rest() == expected
    assert [job.answer() for job in jobs] == [expected[11:]] * 2
    assert left(jobs) == []


def test_the_coordinator_is_small(group, word):
    group().take(1)
    (pid,) = {each.pid for each in coordinators(coordinator_address(word))} - {None}
    libraries = {os.path.basename(m.path) for m in psutil.Process(pid).memory_maps()}
    assert not any("torch" in name or "numpy" in name for name in libraries)


def test_batches_that_are_held_outlive_the_membership(group, train_set, many):
    leaver, other = begun(group, 2, **many)
    other.tell("take", 30)
    kept = leaver.ask("keep", 2)
    assert len(other.answer()) == 30
    leaver.ask("close")
    other.rest()  # its batches are written into the slots that are free now
    assert leaver.ask("keep", 0) == kept


def test_a_forked_child_keeps_the_batches_that_its_parent_drops(group, train_set, many):
    jobs = begun(group, 2, **many)
    kept = jobs[0].ask("keep", 2)
    jobs[0].ask("fork")
    jobs[0].ask("drop")
    all_rest(jobs)
    assert jobs[0].ask("child") == kept
