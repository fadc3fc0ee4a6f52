"""What a worker of a pool learns from the pool's queue, which has no mini-batches."""

import pytest

from fusionloader import _native

WORKERS = 3


@pytest.fixture
def pool(make_control_block):
    made = make_control_block(WORKERS, 1, 0, WORKERS)
    made.orders = _native.MemberView(made.control_fd, -1)
    return made


def test_nobody_is_sent_in_the_beginning(pool):
    assert not any(worker.is_sent for worker in pool.workers)


def test_a_worker_is_sent_until_it_has_looked_where(pool):
    pool.orders.send(1, 0, 77, 1)
    assert [worker.is_sent for worker in pool.workers] == [False, True, False]
    assert pool.workers[1].answer() == 77
    assert not pool.workers[1].is_sent


def test_the_last_of_several_assignments_counts(pool):
    for loader in (5, 6, 65535):
        pool.orders.send(0, 0, loader, 0)
    assert pool.workers[0].answer() == 65535
    assert not pool.workers[0].is_sent


def test_being_sent_to_the_same_loader_again_is_another_assignment(pool):
    for _ in range(2):
        pool.orders.send(0, 0, 5, 0)
        assert pool.workers[0].is_sent and pool.workers[0].answer() == 5


def test_an_assignment_wakes_and_so_does_the_end(pool):
    seen = pool.workers[0].work_word
    pool.orders.send(0, 0, 5, 0)
    assert pool.workers[0].work_word != seen
    pool.workers[0].answer()
    pool.manager.stop()
    assert all(worker.is_sent and worker.stopping for worker in pool.workers)
