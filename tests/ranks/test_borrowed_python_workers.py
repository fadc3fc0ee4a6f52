"""Ranks that share workers which run user code: the same batches, whichever process dies."""

import contextlib
import os
import pickle
import random
import secrets
import time

import pytest
import torch
from job import UNEVEN, Job, assert_borrowed_workers_are_in, children, is_manager, kill_workers
from support.campaigns import seeds
from support.datasets import Numbers
from support.images import train_transform, uneven_images
from support.user_datasets import Brighter, Opened, Ranked
from support.waiting import gone, wait_until, wait_until_gone, wait_until_nothing_is_left
from torch import distributed
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader._native import End, MemberView, TinyBatchState, process_identity
from fusionloader.sharing.pool.served_loader import ServedLoader
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.transforms.executors.python import DatasetSource
from fusionloader.workers import rank_reads
from fusionloader.workers.batch_worker import Collating
from fusionloader.workers.python_assignments import BorrowedBatchWorker, PythonAssignments
from fusionloader.workers.python_worker import PythonWorker, PythonWorkerConfig

SLOW_RANK_0 = UNEVEN["options"][0]
SHARED = {"global_manager": "all"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return uneven_images(tmp_path_factory.mktemp("uneven"))


@pytest.fixture(scope="module")
def pickled(folder, tmp_path_factory):
    """Files with datasets: two of user code, and one with user code behind a plan."""
    path = tmp_path_factory.mktemp("dataset")
    samples = ImageFolder(str(folder)).samples
    tail = transforms.Compose([train_transform(224), Brighter()])
    datasets = {
        "samples": Opened(samples),
        "other": Opened(samples, size=64),
        "tail": ImageFolder(str(folder), tail),
        "ranked": Ranked(samples),
    }
    for name, dataset in datasets.items():
        (path / name).write_bytes(pickle.dumps(dataset))
    return path


@pytest.fixture(scope="module", params=["samples", "whole batches", "tail"])
def common(request, pickled):
    """Arguments of all ranks, by what user code does: make samples, collate, transform."""
    if request.param == "whole batches":
        return {"pickled": str(pickled / "samples"), "collate": 1, **SHARED}
    init = "notes" if request.param == "samples" else ""
    return {"pickled": str(pickled / request.param), "init": init, **SHARED}


def workers_of(name, *more):
    """Workers whose user code does this; ``make matrix`` tries more."""
    others = [pytest.param(other, marks=pytest.mark.matrix) for other in more]
    return pytest.mark.parametrize("common", [name, *others], indirect=True)


@pytest.fixture(scope="module")
def expected(folder, common):
    """The batches of both ranks without sharing."""
    with Job(folder, large_rank=1, **{**common, "global_manager": "off"}) as job:
        digests = []
        for rank in job.ranks:
            batches, stats = rank.finish()
            assert stats["borrowed_samples"] == 0
            assert "not shared with other ranks: global_manager is" in rank.of("explained")[0]
            digests.append(batches)
        assert stats["skipped"]
    return digests


@pytest.mark.parametrize(
    ("method", "pool"),
    [("fork", 0), ("spawn", 1), pytest.param("spawn", 0, marks=pytest.mark.matrix)],
)
@workers_of("whole batches", "samples", "tail")
@pytest.mark.few(1)
def test_borrowed_workers_run_user_code_for_the_same_batches(
    folder, common, expected, method, pool, tmp_path
):
    trace = str(tmp_path / "rank")
    with Job(folder, method=method, pool=pool, trace=trace, **common, **UNEVEN) as job:
        manager = job.manager()
        job.ranks[1].wait_for_a_borrowed_worker()
        assert job.finish() == expected
        assert (
            "workers also serve other ranks with the same data, of 2 here"
            in job.ranks[1].of("explained")[0]
        )
        wait_until(lambda: gone(manager.pid))
    wait_until_nothing_is_left(*job.pids)
    assert_borrowed_workers_are_in(tmp_path / "rank1.json")


@pytest.mark.kills
@pytest.mark.parametrize("trial", seeds(1))
@workers_of("whole batches", "samples", "tail")
def test_killed_borrowed_workers_of_user_code_lose_no_sample(folder, common, expected, trial):
    generator = random.Random(trial)
    with Job(folder, any_may_die=1, **common, **UNEVEN) as job:
        for kill in range(1, 9):
            job.ranks[1].wait_for("borrowed", count=2 * kill)
            time.sleep(generator.uniform(0, 0.1))
            wait_until(lambda: kill_workers(job.ranks[0]))
        assert job.finish() == expected
    wait_until_nothing_is_left(*job.pids)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.matrix)])
@workers_of("samples", "whole batches")
def test_the_death_of_a_rank_with_user_code_costs_the_other_nothing(
    folder, common, expected, victim
):
    survivor = 1 - victim
    with Job(folder, **common, **UNEVEN) as job:
        job.ranks[1].wait_for_a_borrowed_worker()
        doomed, started = job.ranks[victim].process, children(job.ranks[victim])
        doomed.kill()
        wait_until(lambda: doomed.poll() is not None)
        workers = [child.pid for child in started if not is_manager(child)]
        wait_until_gone(workers, 2, "workers, also borrowed ones")
        assert job.ranks[survivor].finish()[0] == expected[survivor]
        wait_until(lambda: all(gone(child.pid) for child in started))
    wait_until_nothing_is_left(*job.pids)


@pytest.mark.parametrize(
    ("of_both", "of_rank_1", "different"),
    [
        pytest.param({}, {"pickled": "other"}, "dataset", id="dataset"),
        pytest.param({}, {"init": "notes"}, "worker_init_fn", id="init", marks=pytest.mark.matrix),
        # Draws are of generators that are not seeded for a sample.
        pytest.param({"init": "own"}, {}, "", id="seeds", marks=pytest.mark.matrix),
        pytest.param({"global_manager": "auto"}, {}, "", id="auto", marks=pytest.mark.matrix),
    ],
)
def test_ranks_whose_samples_may_differ_share_no_workers(
    folder, pickled, of_both, of_rank_1, different
):
    def options(values):
        name = values.get("pickled", "samples")
        return {**SHARED, **of_both, **values, "pickled": str(pickled / name)}

    by_rank = {0: {**options({}), **SLOW_RANK_0}, 1: options(of_rank_1)}
    with Job(folder, large_rank=1, options=by_rank, log=1, epochs=1) as job:
        if different:
            line = f"log rank 0 has another {different}: no workers are shared with it"
            job.ranks[1].wait_for(line)
        for rank in reversed(job.ranks):
            assert rank.finish()[1]["borrowed_samples"] == 0


def test_user_code_that_asks_for_its_rank_stays_in_it(folder, pickled):
    ranked = {"pickled": str(pickled / "ranked"), "epochs": 1}
    with Job(folder, global_manager="off", large_rank=1, **ranked) as job:
        alone = job.finish()
    with Job(folder, **ranked, **SHARED, **UNEVEN) as job:
        for rank in reversed(job.ranks):
            rank.request_end()
        assert [rank.finish()[0] for rank in job.ranks] == alone
        assert all(set(rank.of("borrowed")) == {"0"} for rank in job.ranks)


class Unpicklable(Numbers):
    pickled = 0

    def __getstate__(self):
        type(self).pickled += 1
        raise TypeError("it has a socket")


def test_user_code_is_compared_only_on_request_and_before_workers_start(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", f"test-{secrets.token_hex(8)}")
    options = {"num_workers": 1, "multiprocessing_context": "fork"}
    loader = FusionLoader(Unpicklable(), 4, **options)
    assert len(list(loader)) == len(loader)
    assert not Unpicklable.pickled
    assert "run user code (global_manager='all' shares them" in loader.explain()
    loader = FusionLoader(Unpicklable(), 4, global_manager="all", **options)
    batches = iter(loader)
    assert Unpicklable.pickled  # training may change the dataset from here on
    assert len(list(batches)) == len(loader)
    assert "cannot be compared (TypeError: it has a socket)" in loader.explain()


def test_memory_for_other_ranks_is_used_again_and_within_its_limit():
    options = {"num_workers": 2, "collate_fn": torch.stack, "max_shared_bytes": 300 << 10}
    batches = iter(FusionLoader(Numbers(200), 4, multiprocessing_context="fork", **options))
    rows, acquire = batches._manager._memory._rows, batches._manager._memory._acquire_room
    given = []
    batches._manager._memory._acquire_room = lambda: given.append(acquire()) or given[-1]
    view = MemberView(batches._manager._control.fd, batches._manager._arena.fd)
    view.watch(True)  # as when other ranks have idle workers
    assert torch.cat(list(batches)).tolist() == list(range(200))
    rooms = [room.number for room in given if room is not None]
    assert len(rooms) > rows.count == len(set(rooms))
    assert rows.peak_bytes <= 300 << 10


class Noting(Numbers):
    """Notes its samples, and calls ``then`` with that of an index."""

    def __init__(self, index, then):
        super().__init__(8)
        self.index, self.then, self.made = index, then, []

    def __getitem__(self, index):
        self.made.append(index)
        if index == self.index:
            self.then()
        return super().__getitem__(index)


def worker_of(home, dataset):
    source = DatasetSource(dataset)
    fds = Descriptor(home.control_fd), Descriptor(home.arena.fd), Descriptor(-1)
    config = PythonWorkerConfig(0, 1, *fds, source, 0, None, "raise")
    return PythonWorker(config, source, home.attach(), None)


def wake(home):
    home.manager.withdraw()


def ask(home):
    home.publish(home.manager.published, 2)


def ask_beside_a_complete_one(home):
    ask(home)
    (queue,) = home.workers
    while (claim := queue.claim(End.SMALL, 0, 1)) is not None:
        queue.finish(claim, claim.first, TinyBatchState.COMPLETED)
    ask(home)


@pytest.mark.parametrize(
    ("index", "then", "made"),
    [(2, ask, 3), (2, wake, 8), (2, ask_beside_a_complete_one, 8), (5, ask, 8)],
)
def test_a_whole_mini_batch_is_given_back_if_the_workers_rank_would_wait(
    make_control_block, index, then, made
):
    home, other = make_control_block(1), make_control_block(1, 8, 1, 1)
    dataset = Noting(index, lambda: then(home))
    worker, guest = worker_of(home, dataset), other.attach()
    other.publish(0, 8, tiny_size=8, payload_bytes=1 << 16)
    assert guest.take_guest_slot(1, process_identity(os.getpid()))
    borrowed = BorrowedBatchWorker(worker, worker.config, guest, Collating(torch.stack, True, 1))
    borrowed.serve_claim(guest.claim_as_borrowed(0))
    assert len(dataset.made) == made
    assert other.open(0) == (int(made < 8), 0)
    assert then is wake or home.open(home.manager.published - 1) == (2, 0)


def test_a_worker_of_a_pool_leaves_the_memory_of_another_rank_with_its_loader(make_control_block):
    home, other = make_control_block(1), make_control_block(1, 8, 1, 1)
    worker = worker_of(home, Numbers())
    worker.sharing = PythonAssignments(worker, of_pool=True)
    opened = os.listdir("/proc/self/fd")
    sent = FdMessage({}, b"", (os.dup(other.control_fd), os.dup(other.arena.fd)))
    assert worker.sharing._is_attached(1, sent)
    ServedLoader(worker).close()
    assert os.listdir("/proc/self/fd") == opened


def rank_of_world():
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    rank_reads._found = False
    distributed.group.WORLD.rank()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: os.environb.get(b"RANK"),
        lambda: os.environ.get("SLURM_NODEID"),
        distributed.get_rank,  # there is no group
        rank_of_world,
    ],
    ids=["environb", "another launcher", "get_rank", "group"],
)
def test_who_asks_for_the_rank_is_noticed(ask):
    pid = os.fork()
    if pid == 0:
        rank_reads.watch()
        before = rank_reads.found()
        with contextlib.suppress(ValueError):
            ask()
        os._exit(before or not rank_reads.found())
    assert os.waitpid(pid, 0)[1] == 0
