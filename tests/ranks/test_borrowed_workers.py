"""Ranks that share workers: the same batches, whichever process dies."""

import os
import pickle
import random
import signal
import time

import pytest
from job import UNEVEN, Job, assert_borrowed_workers_are_in, children, is_manager, kill_workers
from support.campaigns import seeds
from support.images import train_transform, uneven_images
from support.remote_workers import RemoteWorker
from support.shards import shards_of
from support.waiting import gone, wait_until, wait_until_gone, wait_until_nothing_is_left
from torchvision.datasets import ImageFolder


@pytest.fixture(scope="module")
def uneven_folder(tmp_path_factory):
    return uneven_images(tmp_path_factory.mktemp("uneven"))


@pytest.fixture(scope="module")
def expected(uneven_folder):
    """The batches of both ranks without sharing."""
    with Job(uneven_folder, global_manager="off", large_rank=1) as job:
        digests = []
        for rank in job.ranks:
            batches, stats = rank.finish()
            assert stats["borrowed_samples"] == 0
            digests.append(batches)
        assert stats["pillow_samples"] and stats["skipped"]
        assert not job.managers()
    return digests


def test_borrowed_workers_read_ranges_of_shards(uneven_folder, expected, tmp_path):
    dataset = shards_of(ImageFolder(str(uneven_folder), train_transform(224)), tmp_path)
    pickled = tmp_path / "dataset"
    pickled.write_bytes(pickle.dumps(dataset))
    with Job(uneven_folder, pickled=str(pickled), **UNEVEN) as job:
        job.ranks[1].wait_for_a_borrowed_worker()
        assert job.finish() == expected
    wait_until_nothing_is_left(*job.pids)


@pytest.mark.parametrize(
    ("method", "pool"),
    [("fork", 0), ("spawn", 1), pytest.param("spawn", 0, marks=pytest.mark.matrix)],
)
@pytest.mark.few(1)
def test_borrowed_workers_make_the_same_batches_and_leave_nothing(
    uneven_folder, expected, method, pool, tmp_path
):
    with Job(
        uneven_folder, method=method, pool=pool, trace=str(tmp_path / "rank"), **UNEVEN
    ) as job:
        manager = job.manager()
        job.ranks[1].wait_for_a_borrowed_worker()
        assert job.finish() == expected
        wait_until(lambda: gone(manager.pid))
    wait_until_nothing_is_left(*job.pids)
    assert_borrowed_workers_are_in(tmp_path / "rank1.json")


def test_without_its_global_manager_a_job_goes_on_and_starts_another(uneven_folder, expected):
    with Job(uneven_folder, **UNEVEN) as job:
        seen = []
        for _ in range(3):
            seen.append(job.manager(other_than=seen))
            job.ranks[1].wait_for_a_borrowed_worker()
            seen[-1].kill()
        assert job.finish() == expected


@pytest.mark.kills
@pytest.mark.parametrize("trial", seeds(1))
@pytest.mark.parametrize("pool", [pytest.param(0, marks=pytest.mark.matrix), 1])
def test_killed_borrowed_workers_lose_no_sample(uneven_folder, expected, trial, pool):
    generator = random.Random(trial)
    with Job(uneven_folder, pool=pool, any_may_die=1, **UNEVEN) as job:
        for kill in range(1, 9):
            job.ranks[1].wait_for("borrowed", count=2 * kill)
            time.sleep(generator.uniform(0, 0.1))
            wait_until(lambda: kill_workers(job.ranks[0]))
        assert job.finish() == expected
    wait_until_nothing_is_left(*job.pids)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.matrix)])
def test_the_death_of_a_rank_costs_the_other_nothing(uneven_folder, expected, victim):
    survivor = 1 - victim
    with Job(uneven_folder, **UNEVEN) as job:
        job.ranks[1].wait_for_a_borrowed_worker()
        doomed, started = job.ranks[victim].process, children(job.ranks[victim])
        doomed.kill()
        wait_until(lambda: doomed.poll() is not None)
        workers = [child.pid for child in started if not is_manager(child)]
        wait_until_gone(workers, 2, "workers, also borrowed ones")
        assert job.ranks[survivor].finish()[0] == expected[survivor]
        wait_until(lambda: all(gone(child.pid) for child in started))
    wait_until_nothing_is_left(*job.pids)


# ---- unusual jobs -------------------------------------------------------------------------------


@pytest.mark.matrix
def test_ranks_with_other_numbers_of_workers_and_tiny_batches_share_workers(
    uneven_folder, expected
):
    options = {0: {**UNEVEN["options"][0], "workers": 2, "tiny_batch_size": 3}, 1: {}}
    with Job(uneven_folder, **{**UNEVEN, "options": options}) as job:
        job.ranks[1].wait_for_a_borrowed_worker()
        assert job.finish() == expected


def test_one_core_of_a_remote_worker_serves_both_ranks(uneven_folder, expected, tmp_path):
    token = tmp_path / "token"
    token.write_text("a token that loaders and the worker know")
    token.chmod(0o600)
    worker = RemoteWorker(token, cores=1)
    try:
        common = {"large_rank": 1, "remote": worker.address, "token": str(token)}
        with Job(uneven_folder, **common) as job:
            for rank in job.ranks:
                wait_until(lambda rank=rank: any(map(int, rank.of("remote"))) or rank.of("end"))
            assert job.finish() == expected
            assert all(any(map(int, rank.of("remote"))) for rank in job.ranks)
    finally:
        worker.end()


@pytest.mark.matrix
def test_ranks_with_other_plans_warn_and_share_no_workers(uneven_folder, expected):
    options = {0: UNEVEN["options"][0], 1: {"size": 64}}
    with Job(uneven_folder, large_rank=1, options=options, log=1) as job:
        assert job.ranks[0].finish()[0] == expected[0]
        _, stats = job.ranks[1].finish()
        assert "log rank 0 has another plan: no workers are shared with it" in job.ranks[1].lines
    assert stats["borrowed_samples"] == 0


def test_a_rank_that_never_starts_blocks_no_other(uneven_folder, expected):
    three = {rank: {"LOCAL_WORLD_SIZE": "3"} for rank in range(2)}
    with Job(uneven_folder, environments=three, **UNEVEN) as job:
        job.ranks[1].wait_for_a_borrowed_worker()
        assert job.finish() == expected


@pytest.mark.matrix
def test_what_a_crashed_job_of_the_same_name_has_left_does_no_harm(uneven_folder, expected):
    with Job(uneven_folder, **UNEVEN) as crashed:
        crashed.manager()
        for rank in crashed.ranks:
            rank.wait_for("batch")
        for rank in crashed.ranks:
            os.killpg(rank.process.pid, signal.SIGKILL)
    # Its workers and its global manager may still be running.
    with Job(uneven_folder, id=crashed.id, **UNEVEN) as job:
        job.ranks[1].wait_for_a_borrowed_worker()
        assert job.finish() == expected
    wait_until_nothing_is_left(*crashed.pids, *job.pids)


@pytest.mark.matrix
def test_incomplete_variables_are_a_warning_and_training_goes_on(uneven_folder, expected):
    environment = {"LOCAL_WORLD_SIZE": ""}
    with Job(uneven_folder, environments={0: environment}, log=1, large_rank=1) as job:
        assert job.finish() == expected
        warned = job.ranks[0].of("log ranks of this machine do not share workers")
    assert warned and "LOCAL_WORLD_SIZE is no number" in warned[0]
