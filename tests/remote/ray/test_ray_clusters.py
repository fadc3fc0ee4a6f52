"""Which Ray cluster is used, and what is said where there is none."""

import contextlib
import logging
import os
import socket
import sys
import time

import psutil
import pytest
import ray
from support.ray_cluster import HEAD, NODE, process_at, running, wait_for
from support.waiting import gone, wait_until

from fusionloader.cli.doctor import remote_workers
from fusionloader.options.remote_settings import Remote
from fusionloader.sharing.remote.protocol import SERVICE
from fusionloader.sharing.remote.ray_control import cluster as ray_cluster
from fusionloader.sharing.remote.ray_fleet import RayFleet
from fusionloader.system.transport.connection import connect


@pytest.fixture
def session(cluster):
    """Makes this process part of the cluster, as training that uses Ray itself is."""
    ray.init(
        cluster.address,
        _node_ip_address=HEAD,
        log_to_driver=False,
        runtime_env={"env_vars": {"OF_THE_SESSION": "7"}},
    )
    yield
    ray.shutdown()


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install fusionloader\[remote\]"):
        RayFleet(Remote(workers=1))


@pytest.mark.parametrize("address", ["127.0.0.2:1", "ray://127.0.0.2:1"])
def test_no_cluster_at_the_address_is_an_error(address):
    with pytest.raises(ConnectionError, match=rf"no Ray cluster answers at {address}.*ray start"):
        RayFleet(Remote(workers=1, address=address))


def test_the_address_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.2:1")
    with pytest.raises(ConnectionError, match=r"no Ray cluster answers at 127\.0\.0\.2:1"):
        RayFleet(Remote(workers=1))


def test_an_address_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="host:port"):
        RayFleet(Remote(workers=1, address="cluster"))


def test_rays_client_needs_a_number_of_workers():
    with pytest.raises(ValueError, match=r"give Remote\(workers=...\)"):
        RayFleet(Remote(address="ray://127.0.0.2:1"))


def test_what_is_no_ray_cluster_is_told_from_one(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_PROBE_SECONDS", 0.2)
    with (
        socket.create_server((HEAD, 0)) as other,
        pytest.raises(ConnectionError, match="is no Ray"),
    ):
        RayFleet(Remote(workers=1, address=f"{HEAD}:{other.getsockname()[1]}"))


@pytest.mark.ray
def test_the_doctor_tries_a_worker_of_each_machine(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    ray_itself, worker = remote_workers.checks(["auto"], None)
    assert (ray_itself.name, ray_itself.state) == ("Ray", "ok")
    assert "2 remote workers on the Ray cluster at" in ray_itself.value
    assert worker.name.startswith(f"worker {NODE}:") and worker.state == "ok"
    assert "by one of 1 cores" in worker.value


@pytest.mark.ray
@pytest.mark.usefixtures("session")
def test_a_session_of_the_users_is_used_and_stays(cluster, start):
    fleet = start(workers=1)
    (address,) = wait_for(fleet, 1)
    assert cluster.address in fleet.explain()
    assert process_at(address).environ()["OF_THE_SESSION"] == "7"
    fleet.close()
    assert ray.is_initialized()
    assert len(ray.nodes()) >= 2


@pytest.mark.ray
@pytest.mark.usefixtures("session")
def test_another_address_than_the_sessions_is_an_error(cluster, start):
    with pytest.raises(ConnectionError, match=r"not of 127\.0\.0\.2:1: leave out"):
        start(workers=1, address=f"{HEAD}:1")


@pytest.mark.ray
@pytest.mark.usefixtures("session")
def test_inside_a_ray_worker_its_cluster_is_used_without_its_node():
    @ray.remote(num_cpus=1, resources={f"node:{NODE}": 0.01})
    def train():
        with contextlib.closing(RayFleet(Remote(workers=1))) as fleet:
            deadline = time.monotonic() + 60
            while not fleet.addresses() and time.monotonic() < deadline:
                time.sleep(0.01)
            (address,) = fleet.addresses()
            connect(address, fleet.identity, SERVICE, 10.0).close()
        return ray.util.get_node_ip_address(), address.host

    assert ray.get(train.remote()) == (NODE, HEAD)


@pytest.mark.ray
def test_where_no_cluster_runs_one_is_started_and_ended(monkeypatch, start, caplog):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    caplog.set_level(logging.INFO, "fusionloader.remote")
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    fleet = start(loader_cores=os.cpu_count() - 1)
    (address,) = wait_for(fleet, 1)
    connect(address, fleet.identity, SERVICE, 10.0).close()
    assert "started one here" in caplog.text
    assert "has only this machine: its free CPUs but" in caplog.text
    assert "which has only this machine" in fleet.explain()
    worker = process_at(address)
    fleet.close()
    wait_until(lambda: gone(worker.pid))
    assert {each.pid for each in psutil.Process().children(recursive=True)} <= before


@pytest.mark.ray
def test_training_goes_on_without_the_head(monkeypatch, caplog, start):
    # Ray ends a process that has joined the cluster when its head has been gone for so long.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with running({}) as cluster:
        fleet = start(workers=1, address=cluster.address)
        (address,) = wait_for(fleet, 1)
        cluster.head_node.kill_gcs_server(check_alive=False)
        wait_until(lambda: "Ray is gone" in fleet.explain())
        assert list(fleet.addresses()) == [address]
        assert caplog.text.count("training continues without it") == 1
        fleet.close()
