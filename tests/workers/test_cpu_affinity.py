"""Workers with dedicated cores, checked by the affinity that the kernel reports."""

import os

import pytest
import torch
from support.batches import same_batches
from support.memory_groups import put
from support.waiting import PATIENCE, wait_until
from torch.utils.data import Dataset

from fusionloader import FusionLoader, WorkerPool
from fusionloader.scheduler.cores import Machine
from fusionloader.system import cpus
from fusionloader.system.cpus import Lease, read_cores, read_machine

HERE = os.sched_getaffinity(0)


class Plain(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(sorted(os.sched_getaffinity(0)))


@pytest.fixture
def roomy(monkeypatch):
    """Says that there is room for two workers, each with one of this machine's CPUs as a core.

    A machine of so many cores is not everywhere; all else is as it would be there.
    """
    first, second = min(HERE), max(HERE)
    spare = (1 << 20,)  # for training, which is never bound
    machine = Machine([spare, (first,), (second,) if second != first else (1 << 21,)])
    monkeypatch.setattr(cpus, "read_machine", lambda: machine)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    # Other runs of these tests may be under way on the machine.
    monkeypatch.setattr(cpus, "_NAMES", f"fusionloader-test-{os.getpid()}-core")
    return [{first}, {second} if second != first else HERE]


def settle(iterator, expected):
    """Waits until all workers, of which one is enough for a batch, are where they are to be."""

    def affinities():
        return [os.sched_getaffinity(process.pid) for process in iterator._workers]

    wait_until(lambda: affinities() == expected)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_each_worker_has_a_core_of_its_own_and_training_has_all(train_set, roomy, method):
    options = {"multiprocessing_context": method, "timeout": PATIENCE}
    iterator = iter(FusionLoader(train_set, 4, num_workers=2, **options))
    next(iterator)
    settle(iterator, roomy)
    assert os.sched_getaffinity(0) == HERE


def test_a_worker_that_takes_the_place_of_another_has_its_core(train_set, roomy):
    iterator = iter(FusionLoader(train_set, 4, num_workers=2, timeout=PATIENCE))
    next(iterator)
    iterator._workers[0].kill()
    assert len(list(iterator)) == 9
    again = iter(FusionLoader(train_set, 4, num_workers=2, timeout=PATIENCE))
    next(again)
    settle(again, roomy)


def test_batches_are_the_same(train_set, roomy):
    off = FusionLoader(train_set, 4, num_workers=2, seed=0, cpu_affinity="off")
    assert same_batches(off, FusionLoader(train_set, 4, num_workers=2, seed=0))


def test_it_can_be_turned_off(train_set, roomy):
    iterator = iter(FusionLoader(train_set, 4, num_workers=2, cpu_affinity="off", timeout=PATIENCE))
    next(iterator)
    settle(iterator, [HERE, HERE])


def test_a_second_loader_takes_no_core_that_has_a_worker(train_set, roomy):
    first = iter(FusionLoader(train_set, 4, num_workers=2, timeout=PATIENCE))
    second = iter(FusionLoader(train_set, 4, num_workers=2, timeout=PATIENCE))
    next(first), next(second)
    settle(first, roomy)
    settle(second, [HERE, HERE])


def _go_everywhere(worker):
    os.sched_setaffinity(0, HERE)


@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.matrix)]
)
def test_what_worker_init_fn_sets_holds(train_set, roomy, method):
    loader = FusionLoader(
        train_set, 4, num_workers=2, timeout=PATIENCE,
        worker_init_fn=_go_everywhere, multiprocessing_context=method,
    )  # fmt: skip
    iterator = iter(loader)
    next(iterator)
    settle(iterator, [HERE, HERE])


def test_user_code_has_all_cores_for_threads_of_its_own(roomy):
    for batch in FusionLoader(Plain(), 4, num_workers=2, timeout=PATIENCE):
        assert set(batch.flatten().tolist()) == HERE


def test_workers_of_a_pool_have_their_cores_until_user_code_comes(train_set, roomy):
    with WorkerPool(2) as pool:
        iterator = iter(FusionLoader(train_set, 4, pool=pool, timeout=PATIENCE))
        next(iterator)
        settle(iterator, roomy)
        list(FusionLoader(Plain(), 4, pool=pool, timeout=PATIENCE))
        settle(iterator, [HERE, HERE])
    with WorkerPool(2, cpu_affinity="off") as pool:
        iterator = iter(FusionLoader(train_set, 4, pool=pool, timeout=PATIENCE))
        next(iterator)
        settle(iterator, [HERE, HERE])


@pytest.mark.parametrize("make", [lambda wish: FusionLoader([0], cpu_affinity=wish),
                                  lambda wish: WorkerPool(1, cpu_affinity=wish)])  # fmt: skip
def test_what_is_no_wish_is_refused(make):
    with pytest.raises(ValueError, match="cpu_affinity should be one of"):
        make("all")


# ---- leases -------------------------------------------------------------------------------------


def made_up(count):
    """A machine with cores of unused numbers, so that concurrent tests do not conflict."""
    first = (os.getpid() + 1) * 1000
    return Machine([(first + number,) for number in range(count)])


def test_two_jobs_never_have_the_same_core():
    machine = made_up(6)
    first, second, third = (Lease(machine, 2, 1) for _ in range(3))
    assert [first.cpus(worker) for worker in range(3)] == [*machine.cores[4:6], ()]
    assert [second.cpus(worker) for worker in range(2)] == list(machine.cores[2:4])
    assert third.cpus(0) == ()
    first.close()
    assert Lease(machine, 2, 1).cpus(0) == machine.cores[4]


def test_where_there_are_not_enough_all_are_left_to_others():
    machine = made_up(3)
    assert Lease(machine, 3, 1).cpus(0) == ()
    assert Lease(machine, 2, 1).cpus(0) == machine.cores[1]


# ---- what the machine says ----------------------------------------------------------------------


def test_the_machine_here_is_described():
    machine = read_machine({})
    assert {cpu for core in machine.cores for cpu in core} == HERE
    assert (machine.rank, machine.ranks) == (0, 1)
    assert read_machine({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}).rank == 1


@pytest.mark.parametrize(
    "environ",
    [
        {"LOCAL_RANK": "0"},
        {"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"},
        {"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "4"},
    ],
)
def test_a_rank_of_which_half_is_known_takes_no_cores(environ):
    assert read_machine(environ) is None


def test_hyper_threads_are_one_core_and_a_cpuset_leaves_some_of_it(tmp_path):
    for cpu, siblings in enumerate(["0,4", "1,5", "2,6", "3,7"] * 2):
        put(tmp_path, **{f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": siblings})
    assert read_cores(frozenset([0, 1, 2, 4, 5]), tmp_path) == ((0, 4), (1, 5), (2,))
