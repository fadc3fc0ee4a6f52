"""Metrics of offloading that are kept from run to run."""

import json
import logging
import multiprocessing
from dataclasses import replace

import pytest
from support.images import train_transform
from support.waiting import PATIENCE
from torch import nn
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, Remote
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.scheduler.offload.decision import Candidate, LocalMetrics, RemoteMetrics
from fusionloader.sharing.remote import remote_tasks
from fusionloader.sharing.remote.offload_metrics import MetricKeys, MetricStore

KEYS = MetricKeys("train.py, 256, cuda:0", "plan 1", 8, ["cpu1:7070", "cpu2:7070"])
LOCAL = LocalMetrics(3000.0, 1000.0, 0.008)
REMOTE = {Candidate.TINY_BATCH: RemoteMetrics(2500.0, 2e-5)}


@pytest.fixture
def store(tmp_path):
    return MetricStore(tmp_path / "offload")


def test_what_was_kept_is_found_again(store):
    assert store.local(KEYS) is None and store.remote(KEYS) == {}
    store.save_local(KEYS, LOCAL)
    store.save_remote(KEYS, REMOTE)
    assert store.local(KEYS) == LOCAL
    assert store.remote(KEYS) == REMOTE


def test_the_users_cache_folder_is_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    MetricStore().save_local(KEYS, LOCAL)
    assert len(list((tmp_path / "fusionloader" / "offload").glob("*.json"))) == 2
    assert MetricStore().local(KEYS) == LOCAL


@pytest.mark.parametrize(
    ("change", "keeps_local"),
    [
        ({"model": "other.py"}, False),
        ({"plan": "plan 2"}, False),
        ({"local_workers": 7}, False),
        ({"machine": "another"}, False),
        ({"nodes": ["cpu1:7070"]}, True),
    ],
)
def test_metrics_of_something_else_are_not_found(store, change, keeps_local):
    store.save_local(KEYS, LOCAL)
    store.save_remote(KEYS, REMOTE)
    other = replace(KEYS, **change)
    assert (store.local(other) is not None) == keeps_local
    assert store.remote(other) == {}


def test_the_order_of_remote_workers_changes_nothing(store):
    store.save_remote(KEYS, REMOTE)
    assert store.remote(replace(KEYS, nodes=list(reversed(KEYS.nodes)))) == REMOTE


def test_a_model_has_one_training_rate_whatever_the_plan(store):
    store.save_local(KEYS, LOCAL)
    other = replace(KEYS, plan="plan 2")
    store.save_local(other, LocalMetrics(3100.0, 500.0, 0.02))
    assert store.local(KEYS) == replace(LOCAL, training_rate=3100.0)


def written(content):
    return lambda path: path.write_bytes(content)


def with_values(values):
    def damage(path):
        found = json.loads(path.read_text())
        path.write_text(json.dumps({**found, "values": values}))

    return damage


def foreign(path):
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "key": ["another"]}))


def unreadable(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (written(b'{"format": 1, "ke'), "not JSON"),
        (written(b"\xff\x00"), "not JSON"),
        (written(b"[" * 60_000), "not JSON"),
        (written(b"[]"), "not of format 1"),
        (written(b'{"format": 2}'), "not of format 1"),
        (written(b" " * 70_000), "more than 65536 bytes"),
        (foreign, "something else"),
        (with_values([]), "something else"),
        (with_values({"local_rate": 1000.0}), "local_cost is None"),
        (with_values({"local_rate": -1.0, "local_cost": 0.1}), "local_rate is -1.0"),
        (with_values({"local_rate": float("nan"), "local_cost": 0.1}), "local_rate is nan"),
        (with_values({"local_rate": float("inf"), "local_cost": 0.1}), "local_rate is inf"),
        (with_values({"local_rate": 10**400, "local_cost": 0.1}), "local_rate is 1000"),
        (with_values({"local_rate": True, "local_cost": 0.1}), "local_rate is True"),
        (unreadable, "Is a directory"),
    ],
)
def test_a_damaged_file_is_ignored_with_its_reason(store, caplog, damage, reason):
    caplog.set_level(logging.INFO, logger="fusionloader.remote")
    store.save_local(KEYS, LOCAL)
    path = store.path(KEYS.plan_key())
    damage(path)
    assert store.local(KEYS) is None
    assert reason in caplog.text and path.name in caplog.text


def test_a_damaged_file_is_written_again(store):
    store.save_local(KEYS, LOCAL)
    store.path(KEYS.plan_key()).write_bytes(b"damaged")
    store.save_local(KEYS, LOCAL)
    assert store.local(KEYS) == LOCAL


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"GUESS": {"remote_rate": 1.0, "remote_cost": 1.0}}, "unknown kind of request 'GUESS'"),
        ({"SHIP": 3}, "3 is no pair"),
        ({"SHIP": {"remote_rate": 0.0, "remote_cost": 1.0}}, "remote_rate is 0.0"),
    ],
)
def test_damaged_metrics_of_remote_workers_are_ignored(store, caplog, values, reason):
    caplog.set_level(logging.INFO, logger="fusionloader.remote")
    store.save_remote(KEYS, REMOTE)
    with_values(values)(store.path(KEYS.nodes_key()))
    assert store.remote(KEYS) == {} and reason in caplog.text


def test_metrics_that_say_nothing_are_not_kept(store):
    store.save_local(KEYS, LocalMetrics(3000.0, 0.0, 0.0))
    idle = RemoteMetrics(0.0, 0.0)
    store.save_remote(KEYS, {**REMOTE, Candidate.MINI_BATCH: idle})
    assert store.local(KEYS) is None
    assert store.remote(KEYS) == REMOTE


def test_a_folder_that_cannot_be_made_is_said_and_nothing_else_happens(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="fusionloader.remote")
    (tmp_path / "file").touch()
    store = MetricStore(tmp_path / "file" / "offload")
    store.save_local(KEYS, LOCAL)
    assert "measured in each run" in caplog.text
    assert store.local(KEYS) is None


def write_many(folder, number, barrier):
    store, metrics = MetricStore(folder), LocalMetrics(1000.0 + number, 100.0 + number, 1.0)
    barrier.wait(PATIENCE)
    for _ in range(300):
        store.save_local(KEYS, metrics)


def test_two_processes_that_write_at_once_leave_whole_files(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    writers = [
        context.Process(target=write_many, args=(tmp_path, number, barrier)) for number in (1, 2)
    ]
    for writer in writers:
        writer.start()
    barrier.wait(PATIENCE)
    store, whole = MetricStore(tmp_path), 0
    while any(writer.is_alive() for writer in writers):
        found = store.local(KEYS)
        if found is not None:
            whole += 1
            assert found.local_rate in (101.0, 102.0) and found.training_rate in (1001.0, 1002.0)
        else:
            assert not whole, "a file that was there is missing or damaged"
    for writer in writers:
        writer.join(PATIENCE)
        assert writer.exitcode == 0
    assert store.local(KEYS) is not None
    assert len(list(tmp_path.iterdir())) == 2, "a partial file is left"


def test_a_model_is_known_by_its_parameters_and_not_kept():
    names = [
        Remote(model=model).model
        for model in (nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 3), nn.Linear(3, 2).double())
    ]
    assert names[0] == names[1] and len(set(names)) == 3
    assert Remote(model="teacher").model == "teacher"
    assert Remote().model is None
    with pytest.raises(ValueError, match=r"model should be a torch\.nn\.Module or a name, not 7"):
        Remote(model=7)


def test_models_of_one_script_have_metrics_of_their_own(image_folder):
    dataset = ImageFolder(str(image_folder), train_transform())

    def key(model):
        remote = Remote(servers=["localhost:1"], offload="fastflow", model=model)
        loader = FusionLoader(dataset, 4, num_workers=1, remote=remote)
        return remote_tasks._metric_keys(LoaderOptions.of(loader), "plan").model

    assert len({key(None), key("teacher"), key(nn.Linear(2, 2)), key(nn.Linear(2, 3))}) == 4
    assert key(nn.Linear(2, 2)) == key(nn.Linear(2, 2))
