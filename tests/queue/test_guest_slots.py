"""Guest slots and assignments: what a borrowed worker may take, and what its death leaves."""

import os
import resource
import subprocess
import sys

import pytest
from support.control_blocks import ControlBlock
from support.limits import limited

from fusionloader import _native
from fusionloader._native import TinyBatchState, WorkerActivity
from fusionloader.system.shm import objects

GUEST_SLOTS = 2
WORKERS = 1
FIRST_GUEST_SLOT = WORKERS


class Borrower(ControlBlock):
    """A queue with a worker of its own and guest slots for others."""

    def __init__(self):
        super().__init__(WORKERS, 8, GUEST_SLOTS, WORKERS)
        self.worker = self.workers[0]
        self.view = _native.MemberView(self.control_fd, self.arena.fd)

    def publish(self, sequence, tiny_batches):
        super().publish(sequence, 2 * tiny_batches, 2, payload_bytes=64)

    def progress(self):
        return [(p.sequence, p.waiting, p.half_done) for p in self.view.progress()]

    def sent_to(self):
        """Where the one worker is sent, which has never begun."""
        (worker,) = self.view.workers()
        assert worker.activity is WorkerActivity.ABSENT
        return worker.member, worker.guest_slot


@pytest.fixture
def borrower(make_control_block):
    return make_control_block(kind=Borrower)


@pytest.fixture
def me():
    return _native.process_identity(os.getpid())


def assignment(last):
    """For mini-batches up to ``last``."""
    return last << 32


def test_a_process_is_known_by_more_than_its_pid(me):
    assert me and me == _native.process_identity(os.getpid())
    assert me & 0x3FFFFF == os.getpid()
    assert me != _native.process_identity(os.getppid())


def test_a_process_that_has_ended_is_nobody_even_as_a_zombie():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert _native.process_identity(process.pid)
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert _native.process_identity(process.pid) == 0
    process.wait()
    assert _native.process_identity(process.pid) == 0


def test_a_guest_slot_has_one_owner(borrower, me):
    first, second = borrower.attach(), borrower.attach()
    assert borrower.view.free_guest_slots() == [1, 2]
    assert first.take_guest_slot(FIRST_GUEST_SLOT, me)
    assert not second.take_guest_slot(FIRST_GUEST_SLOT, me)
    assert borrower.view.free_guest_slots() == [2]
    first.leave_guest_slot()
    assert second.take_guest_slot(FIRST_GUEST_SLOT, me)


@pytest.mark.parametrize("guest_slot", [0, 3, 1 << 15])
def test_what_is_no_guest_slot_cannot_be_taken(borrower, me, guest_slot):
    assert not borrower.attach().take_guest_slot(guest_slot, me)


def test_a_borrowed_worker_keeps_to_the_mini_batches_of_its_assignment(borrower, me):
    for sequence in range(3):
        borrower.publish(sequence, tiny_batches=1)
    borrowed_worker = borrower.attach()
    assert borrowed_worker.take_guest_slot(FIRST_GUEST_SLOT, me)
    claims = [borrowed_worker.claim_as_borrowed(assignment(1)) for _ in range(3)]
    assert [claim and claim.sequence for claim in claims] == [0, 1, None]


def test_a_borrowed_worker_leaves_mini_batches_that_there_is_no_memory_for(borrower, me):
    ControlBlock.publish(borrower, 0, 2)
    borrower.publish(1, tiny_batches=1)
    assert borrower.progress() == [(0, 0, 0), (1, 1, 0)]
    borrowed_worker = borrower.attach()
    assert borrowed_worker.take_guest_slot(FIRST_GUEST_SLOT, me)
    assert borrowed_worker.claim_as_borrowed(assignment(1)).sequence == 1
    assert borrower.open(0) == (2, 0)


def test_a_borrowed_worker_does_not_take_what_came_back(borrower, me):
    borrower.publish(0, tiny_batches=1)
    borrowed_worker = borrower.attach()
    assert borrowed_worker.take_guest_slot(FIRST_GUEST_SLOT, me)
    borrowed_worker.give_back(borrowed_worker.claim_as_borrowed(assignment(0)), 0)
    assert borrower.open(0) == (1, 0)
    assert borrowed_worker.claim_as_borrowed(assignment(0)) is None
    assert borrower.worker.claim_next(1).first == 0


def test_a_worker_that_works_elsewhere_seems_to_be_at_no_sample_here(
    borrower, make_control_block, me
):
    home = make_control_block(1, 8, GUEST_SLOTS, 1)
    borrower.publish(0, tiny_batches=2)
    own, guest = home.workers[0], borrower.attach()
    worker = _native.SharedWorker(own, 0, False)
    _native.MemberView(home.control_fd, home.arena.fd).send(0, 0, 7, FIRST_GUEST_SLOT)
    assert not worker.obey() and worker.assignment() == 7
    worker.attach(7, guest)
    assert worker.obey()

    def does(queue, claim):
        queue.begin_sample(claim, claim.first, 2 * claim.first)
        queue.end_samples(claim, claim.first, 2)
        queue.finish(claim, claim.first, TinyBatchState.COMPLETED)

    does(guest, worker.claim(1))
    assert borrower.view.borrowed_at_work() == 1
    home.publish(0, 2)
    does(own, own.claim_next(1))
    worker.report(WorkerActivity.HOME)
    assert borrower.manager.worker(FIRST_GUEST_SLOT).sequence is None
    assert borrower.view.borrowed_at_work() == 0
    does(guest, worker.claim(1))
    assert home.manager.worker(0).sequence is None
    worker.leave_guest_slot()
    assert borrower.manager.worker(FIRST_GUEST_SLOT).pid == 0


def test_what_a_dead_borrowed_worker_held_goes_to_the_borrowers_own_workers(borrower):
    borrower.publish(0, tiny_batches=3)
    code = f"""if True:
        import os
        from fusionloader import _native
        queue = _native.WorkerQueue({borrower.control_fd}, {borrower.arena.fd}, 0)
        assert queue.take_guest_slot({FIRST_GUEST_SLOT}, _native.process_identity(os.getpid()))
        queue.claim_as_borrowed(0)
        os._exit(9)
    """
    fds = (borrower.control_fd, borrower.arena.fd)
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=fds)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert borrower.open(0) == (2, 1)
    assert borrower.view.free_guest_slots() == [2]  # until its claims are back, nobody else's
    assert borrower.manager.dead_borrowed_workers() == [FIRST_GUEST_SLOT]
    assert len(borrower.manager.take_back(FIRST_GUEST_SLOT)) == 1
    borrower.manager.empty_guest_slot(FIRST_GUEST_SLOT)
    process.wait()
    assert borrower.manager.dead_borrowed_workers() == []
    assert borrower.manager.worker(FIRST_GUEST_SLOT).pid == 0
    assert borrower.view.free_guest_slots() == [1, 2]
    assert all(borrower.worker.claim_next(1) for _ in range(3))


def test_a_borrowed_worker_lives_also_where_no_file_can_be_opened(borrower, me):
    assert borrower.attach().take_guest_slot(FIRST_GUEST_SLOT, me)
    with limited(resource.RLIMIT_NOFILE, 3):
        assert borrower.manager.dead_borrowed_workers() == []
        unknown = _native.process_identity(os.getpid())
        assert not borrower.attach().take_guest_slot(FIRST_GUEST_SLOT + 1, unknown)


def test_a_borrowed_worker_that_lives_is_left_alone(borrower, me):
    borrower.publish(0, tiny_batches=1)
    borrowed_worker = borrower.attach()
    assert borrowed_worker.take_guest_slot(
        FIRST_GUEST_SLOT, me
    ) and borrowed_worker.claim_as_borrowed(assignment(0))
    assert borrower.manager.dead_borrowed_workers() == []


def test_the_global_manager_sees_what_waits_and_what_is_half_done(borrower):
    borrower.publish(0, tiny_batches=4)
    borrower.publish(1, tiny_batches=2)
    claim = borrower.worker.claim_next(2)
    borrower.worker.begin_sample(claim, claim.first, claim.first * 2)
    assert borrower.progress() == [(0, 2, 0), (1, 2, 0)]
    borrower.worker.end_samples(claim, claim.first, 2)
    assert borrower.progress() == [(0, 2, 1), (1, 2, 0)]
    for tiny_batch in (claim.first, claim.first + 1):
        borrower.worker.finish(claim, tiny_batch, TinyBatchState.COMPLETED)
    borrower.manager.deliver_until(1)
    assert borrower.progress() == [(1, 2, 0)]


def test_an_assignment_stands_until_it_is_answered(borrower):
    assert borrower.sent_to() == (0, 0)
    borrower.view.send(0, 5, 77, 2)
    assert borrower.sent_to() == (77, 2)
    borrower.manager.take_back(0)  # its worker has died: nobody will come
    assert borrower.sent_to() == (0, 0)
    with pytest.raises(IndexError):
        borrower.view.send(WORKERS, 5, 77, 2)


def test_a_control_block_of_another_layout_is_refused():
    fd = objects.create(1 << 20)
    with pytest.raises(RuntimeError, match="version"):
        _native.MemberView(fd, fd)
    os.close(fd)
