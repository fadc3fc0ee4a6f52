"""Loaders whose remote workers Ray starts, on a real cluster."""

import signal

import pytest
from support.ray_cluster import process_at
from support.remote_workers import assert_same, batches_of, folder_loader
from support.waiting import wait_until

from fusionloader import Remote
from fusionloader.system.transport.address import Address


def serving(loader):
    return [each for each in loader.stats().remote.workers if each.state == "serving"]


def test_a_loader_trains_with_workers_of_a_cluster(cluster, image_folder):
    remote = Remote(workers=2, address=cluster.address, offload="all")
    found = []
    with folder_loader(image_folder, remote=remote) as loader:

        def trained(count):
            found.extend(batches_of(loader, 1))
            return len([each for each in serving(loader) if each.samples]) >= count

        wait_until(lambda: trained(2), "two workers have not taken part", pause=0.5)
        assert f"on the Ray cluster at {cluster.address}" in loader.explain()
        killed = serving(loader)[0]
        process_at(Address.parse(killed.address)).send_signal(signal.SIGKILL)
        wait_until(
            lambda: trained(2) and killed.address not in [each.address for each in serving(loader)],
            "the worker that was killed is not replaced",
            pause=0.5,
        )
    with folder_loader(image_folder) as alone:
        assert_same(found, batches_of(alone, len(found) // len(alone)))


def test_a_cluster_that_is_not_there_is_said_before_training(image_folder):
    loader = folder_loader(image_folder, remote=Remote(workers=1, address="127.0.0.9:1"))
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.9:1"):
        iter(loader)


def test_without_a_cluster_in_time_training_goes_on_alone(image_folder, monkeypatch, caplog):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    loader = folder_loader(image_folder, remote=Remote(workers=1, join_seconds=1e-3))
    with folder_loader(image_folder) as alone, loader:
        assert_same(batches_of(loader, 1), batches_of(alone, 1))
        assert "no remote workers: a Ray cluster could not be joined" in loader.explain()
        assert_same(batches_of(loader, 1), batches_of(alone, 1))
    assert caplog.text.count("goes on without remote workers") == 1


@pytest.mark.ray
def test_a_cluster_that_is_gone_when_a_closed_loader_is_used_again_ends_no_training(
    image_folder, monkeypatch
):
    """A cluster that was not named may end between two uses of a loader."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    anew = {"persistent_workers": False}  # the generator is drawn from for each iterator
    with folder_loader(image_folder, remote=Remote(workers=1), **anew) as loader:
        found = batches_of(loader, 1)
        loader.close()
        loader.remote = Remote(workers=1, join_seconds=1e-3)
        loader._state._link._settings = loader.remote
        found += batches_of(loader, 1)
        assert "no remote workers: a Ray cluster could not be joined" in loader.explain()
    with folder_loader(image_folder, **anew) as alone:
        assert_same(found, batches_of(alone, 2))
