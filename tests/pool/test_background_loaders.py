"""Loaders of a pool that get workers only while the others have nothing to claim."""

import copy
import pickle
import threading

import pytest
import torch
from support.batches import same_batches
from support.participants import participant
from support.waiting import PATIENCE, Flag, wait_until
from torch.utils.data import Dataset

from fusionloader import FusionLoader, WorkerPool
from fusionloader.sharing.pool.binding import PoolBinding

SAMPLES = 24


class Logged(Dataset):
    """Samples that note in a file that they are made; the third one waits for a gate."""

    def __init__(self, name, log, gate=None):
        self.name, self.log, self.gate = name, log, gate

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        with open(self.log, "a") as file:
            file.write(f"{self.name} ")
        if index == 2 and self.gate is not None:
            self.gate.wait()
        return torch.tensor(index)


@pytest.fixture
def pool():
    with WorkerPool(1) as made:
        yield made


def binding_of(iterator):
    return participant(iterator._manager, PoolBinding)


@pytest.mark.parametrize("background", [True, False], ids=["background", "equal"])
def test_training_is_served_first_while_a_background_loader_waits(pool, tmp_path, background):
    log, gate = tmp_path / "log", Flag(tmp_path / "gate")
    train = FusionLoader(
        Logged("train", log, gate), 2, pool=pool, prefetch_factor=4, timeout=PATIENCE
    )
    val_pool = pool.background() if background else pool
    val = FusionLoader(Logged("val", log), 2, pool=val_pool, timeout=PATIENCE)
    training = iter(train)
    next(training)  # the next batch is being made, and others are there to be claimed
    wait_until(lambda: log.read_text().count("train") >= 3, "the gate was not reached")
    validating = iter(val)
    asks = threading.Thread(target=next, args=[validating])
    asks.start()
    binding = binding_of(validating)
    wait_until(lambda: binding.has_requested or pool._processes._assigned_to == binding.number)
    gate.set()
    asks.join(PATIENCE)
    order = log.read_text().split()
    before_validation = order[: order.index("val")].count("train")
    in_flight = 2 * train.prefetch_factor
    assert before_validation >= in_flight if background else before_validation < in_flight


@pytest.mark.parametrize("kind", ["plan", "user code"])
def test_a_background_loader_gets_the_workers_that_the_others_leave(
    pool, tmp_path, train_set, eval_set, kind
):
    sets = {"plan": eval_set, "user code": Logged("val", tmp_path / "log")}
    train = iter(FusionLoader(train_set, 4, pool=pool, seed=3, timeout=PATIENCE))
    next(train)
    for _ in range(2):
        val = FusionLoader(sets[kind], 4, pool=pool.background(), seed=3, timeout=PATIENCE)
        assert same_batches(list(FusionLoader(sets[kind], 4, seed=3)), list(val))
    rest = list(FusionLoader(train_set, 4, num_workers=1, seed=3))[1:]
    assert same_batches(rest, list(train))


def test_background_loaders_alone_are_served(pool, tmp_path, eval_set):
    for dataset in (Logged("val", tmp_path / "log"), eval_set):
        loader = FusionLoader(dataset, 4, pool=pool.background(), seed=3, timeout=PATIENCE)
        assert same_batches(list(FusionLoader(dataset, 4, seed=3)), list(loader))


def test_a_worker_that_dies_is_replaced_for_a_background_loader_too(pool, tmp_path):
    dataset = Logged("val", tmp_path / "log")
    loader = FusionLoader(dataset, 4, pool=pool.background(), timeout=PATIENCE)
    iterator = iter(loader)
    batches = [next(iterator)]
    iterator._workers[0].kill()
    assert [index for batch in [*batches, *iterator] for index in batch.tolist()] == list(
        range(SAMPLES)
    )
    assert loader.stats().worker_restarts == 1


def test_a_training_that_ends_in_mid_epoch_leaves_its_workers(pool, tmp_path):
    train = iter(FusionLoader(Logged("train", tmp_path / "log"), 4, pool=pool, timeout=PATIENCE))
    next(train)
    val = iter(
        FusionLoader(Logged("val", tmp_path / "log"), 4, pool=pool.background(), timeout=PATIENCE)
    )
    next(val)
    del train
    assert len(list(val)) == SAMPLES // 4 - 1


def test_the_background_of_a_pool_is_that_pool(pool):
    background = pool.background()
    assert background.owner is background.background().owner is pool
    assert repr(background) == "WorkerPool(1).background()"
    assert background.background() is copy.deepcopy(background) is background
    one, other = pickle.loads(pickle.dumps((pool, background)))
    assert other.owner is one and other.is_background and not one.is_background
    with pytest.raises(ValueError, match="num_workers is 3"):
        FusionLoader([1], pool=background, num_workers=3)


def test_to_close_the_background_is_to_close_the_pool(pool, eval_set):
    background = pool.background()
    iterator = iter(FusionLoader(eval_set, 4, pool=background))
    background.close()
    assert pool._processes is None
    with pytest.raises(RuntimeError, match="the WorkerPool was closed"):
        list(iterator)
