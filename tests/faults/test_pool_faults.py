"""Workers of a pool that die or hang, samples that are bad, and ends of all kinds."""

import ctypes
import gc
import itertools
import os
import resource
import time

import psutil
import pytest
import torch
from support.batches import same_batches
from support.waiting import PATIENCE, gone, wait_until, wait_until_nothing_is_left
from torch.utils.data import Dataset

from fusionloader import FusionLoader, WorkerPool
from fusionloader.engine.manager import publications
from fusionloader.sharing.pool import pool_processes
from fusionloader.workers import worker_set

WORKERS = 2


class Noise(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        return torch.rand(50, 50) @ torch.rand(50, 50), index


class Crashing(Noise):
    def __getitem__(self, index):
        if index == 5:
            ctypes.string_at(0)
        return index


class Raising(Noise):
    def __getitem__(self, index):
        if index == 5:
            raise KeyError("bad sample")
        return index


class Hanging(Noise):
    def __getitem__(self, index):
        if index >= 8:
            time.sleep(1000)
        return index


class Slow(Noise):
    def __getitem__(self, index):
        time.sleep(0.3)
        return index


class Odd(Noise):
    """Samples of which some do not fit the layout, and are larger than a pipe."""

    def __getitem__(self, index):
        return torch.full((200, 200), index) if index // 4 % 2 else torch.tensor(index)


@pytest.fixture
def pool():
    with WorkerPool(WORKERS) as made:
        yield made


@pytest.fixture
def sets(train_set):
    return {"plan": train_set, "user code": Noise()}


def alone(dataset):
    return list(FusionLoader(dataset, 4, num_workers=WORKERS, seed=3))


@pytest.mark.parametrize(
    ("bad", "error", "said"),
    [
        (Crashing(), RuntimeError, "3 workers died on the same samples.*index 5"),
        (Raising(), KeyError, "bad sample"),
    ],
)
def test_a_bad_sample_is_an_error_of_its_loader_alone(train_set, pool, bad, error, said):
    healthy = iter(FusionLoader(train_set, 4, pool=pool, seed=3, timeout=PATIENCE))
    batches = [next(healthy)]
    with pytest.raises(error, match=said):
        list(FusionLoader(bad, 4, pool=pool, timeout=PATIENCE))
    assert same_batches(alone(train_set), [*batches, *healthy])


def test_a_sample_that_never_ends_is_ended_with_its_loader(train_set, pool, monkeypatch):
    monkeypatch.setattr(worker_set, "_PATIENCE_SECONDS", 0.5)
    hanging = FusionLoader(Hanging(), 4, pool=pool, timeout=1)
    iterator = iter(hanging)
    with pytest.raises(RuntimeError, match="timed out"):
        list(iterator)
    iterator._shutdown_workers()
    assert same_batches(alone(train_set), list(FusionLoader(train_set, 4, pool=pool, seed=3)))


def _explode(worker):
    raise ValueError("no such worker")


@pytest.mark.parametrize("kind", ["plan", "user code"])
def test_an_error_in_worker_init_fn_is_raised_and_the_pool_goes_on(sets, pool, kind):
    for _ in range(2):
        with pytest.raises(ValueError, match="no such worker"):
            list(FusionLoader(sets[kind], 4, pool=pool, worker_init_fn=_explode, timeout=PATIENCE))
    assert same_batches(alone(sets[kind]), list(FusionLoader(sets[kind], 4, pool=pool, seed=3)))


def _leave(worker):
    os._exit(3)


def test_workers_that_end_before_they_begin_are_not_started_for_ever(pool):
    with pytest.raises(RuntimeError, match="three in a row ended before they asked for work"):
        list(FusionLoader(Noise(), 4, pool=pool, worker_init_fn=_leave, timeout=PATIENCE))


def test_workers_killed_at_another_loader_are_no_error_of_one_that_waits_for_them(
    pool, monkeypatch
):
    monkeypatch.setattr(
        publications, "MOST_DEATHS", 1 << 30
    )  # all may be at one sample of the other
    slow = iter(FusionLoader(Slow(), 1, pool=pool, timeout=PATIENCE))
    quick = FusionLoader(Noise(), 4, pool=pool, seed=3, timeout=PATIENCE)
    iterator, batches = iter(quick), []
    killed = None

    def restarts():
        iterator._manager._look()
        return iterator._manager.totals().worker_restarts

    for count in range(5):
        while slow._workers[0].pid == killed:
            next(slow)  # starts the worker again, which begins a sample
        batches.append(next(iterator))  # the worker has not read yet that this loader exists
        wait_until(lambda: slow._workers[0].was_prepared)
        killed = slow._workers[0].pid
        slow._workers[0].kill()
        wait_until(lambda: restarts() > count)  # noqa: B023
    assert same_batches(alone(Noise()), [*batches, *iterator])


# ---- ends ---------------------------------------------------------------------------------------


def begun(pool, dataset):
    iterator = iter(FusionLoader(dataset, 4, pool=pool, seed=3))
    next(iterator)
    return iterator, [process.pid for process in iterator._workers]


def test_closing_a_pool_ends_its_processes(sets):
    pool = WorkerPool(WORKERS)
    begun_iterators = [begun(pool, dataset) for dataset in sets.values()]
    pool.close()
    assert all(gone(pid) for _, pids in begun_iterators for pid in pids)
    with pytest.raises(RuntimeError, match="the WorkerPool was closed while an iterator was"):
        list(begun_iterators[0][0])
    del begun_iterators
    wait_until_nothing_is_left()


def test_a_closed_pool_starts_new_processes(train_set):
    pool = WorkerPool(WORKERS)
    loader = FusionLoader(train_set, 4, pool=pool, seed=3)
    for _ in range(2):
        assert same_batches(alone(train_set), list(FusionLoader(train_set, 4, pool=pool, seed=3)))
        pool.close()
    assert len(list(loader)) == 10
    pool.close()


def test_a_loader_that_keeps_its_iterator_has_the_workers_that_a_closed_pool_began_anew(sets):
    pool = WorkerPool(WORKERS)
    for dataset in sets.values():
        loader = FusionLoader(
            dataset, 4, pool=pool, seed=3, persistent_workers=True, timeout=PATIENCE
        )
        expected = FusionLoader(dataset, 4, num_workers=WORKERS, seed=3)
        assert same_batches(list(expected), list(loader))
        for _ in loader:
            pool.close()
            break
        list(expected)
        assert same_batches(list(expected), list(loader))
    pool.close()


def test_a_closed_pool_is_an_error_at_the_next_batch_even_if_that_is_done(train_set, pool, caplog):
    iterator = iter(FusionLoader(train_set, 4, pool=pool, timeout=PATIENCE))
    next(iterator)
    wait_until(lambda: iterator._manager.in_flight.ready > 0)
    pool.close()
    with pytest.raises(RuntimeError, match="the WorkerPool was closed while an iterator was"):
        next(iterator)
    assert not [record for record in caplog.records if "is replaced" in record.message]


@pytest.mark.matrix
def test_a_pool_that_is_closed_again_and_again_keeps_no_memory(train_set):
    pool = WorkerPool(WORKERS)

    def mappings():
        maps = psutil.Process().memory_maps(grouped=False)
        return sum("fusionloader-" in mapping.path for mapping in maps)

    found = []
    for _ in range(4):
        assert len(list(FusionLoader(train_set, 4, pool=pool, timeout=PATIENCE))) == 10
        pool.close()
        gc.collect()
        found.append(mappings())
    assert found[-1] <= found[0]


def test_a_pool_that_is_collected_ends_its_processes(train_set):
    pool = WorkerPool(WORKERS)
    iterator, pids = begun(pool, train_set)
    del pool
    gc.collect()
    assert not any(map(gone, pids))  # the iterator has it
    del iterator
    gc.collect()
    wait_until(lambda: all(map(gone, pids)))


def test_a_loader_that_ends_leaves_the_processes_to_the_others(sets, pool):
    iterator, pids = begun(pool, sets["plan"])
    del iterator
    gc.collect()
    assert begun(pool, sets["user code"])[1] == pids


def test_a_worker_unmaps_the_memory_of_loaders_that_have_ended(train_set, pool):
    iterator, pids = begun(pool, train_set)

    def mappings():
        return sum(len(psutil.Process(pid).memory_maps(grouped=False)) for pid in pids)

    for _ in range(3):
        list(FusionLoader(train_set, 4, pool=pool))
    wait_until(lambda: mappings() > 0)
    before = mappings()
    for _ in range(30):
        list(FusionLoader(train_set, 4, pool=pool))
    wait_until(lambda: mappings() < before + 30)
    assert len(list(iterator)) == 9


def test_a_worker_unmaps_the_memory_of_loaders_of_user_code(pool):
    iterator, pids = begun(pool, Noise())

    def mappings():
        maps = [each for pid in pids for each in psutil.Process(pid).memory_maps(grouped=False)]
        return sum("memfd:" in each.path for each in maps)

    before = mappings()
    for _ in range(2):
        list(FusionLoader(Noise(), 4, pool=pool))
    wait_until(lambda: mappings() <= before + 4)
    assert len(list(iterator)) == 29


@pytest.mark.parametrize("whose", ["own", "loader's in a pool", "pool"])
def test_workers_blocked_on_a_full_pipe_end_by_themselves(pool, whose, monkeypatch):
    for module in (pool_processes, worker_set):  # one that does not would be killed after that
        monkeypatch.setattr(module, "_PATIENCE_SECONDS", PATIENCE)
    workers = {"num_workers": WORKERS} if whose == "own" else {"pool": pool}
    iterator = iter(FusionLoader(Odd(), 4, prefetch_factor=8, **workers))
    next(iterator)
    processes = iterator._workers
    if whose != "pool":
        iterator._shutdown_workers()
    if whose != "own":
        pool.close()
    assert [process.exitcode for process in processes] == [0, 0]


def test_a_forked_child_has_a_pool_of_its_own(train_set, pool):
    iterator, _ = begun(pool, train_set)
    child = os.fork()
    if child == 0:
        pool.close()
        count = len(list(FusionLoader(train_set, 4, pool=pool)))
        pool.close()
        os._exit(0 if count == 10 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(iterator)) == 9


def test_workers_that_could_not_receive_a_loader_are_replaced(pool):
    first, second = (FusionLoader(Noise(), 4, pool=pool, seed=3) for _ in range(2))
    iterator = iter(first)
    batches = [next(iterator)]
    pids = [worker.pid for worker in iterator._workers]
    for pid in pids:  # they may open nothing
        opened = set(map(int, os.listdir(f"/proc/{pid}/fd")))
        free = next(fd for fd in itertools.count() if fd not in opened)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, free))
    found = iter(second)
    wait_until(lambda: all(map(gone, pids)), "workers serve on without a loader")
    assert same_batches(alone(Noise()), list(found))
    assert same_batches(alone(Noise()), [*batches, *iterator])
