"""Workers on a Ray cluster: they come, work, die, are replaced, and leave."""

import contextlib
import logging
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from support.images import photo
from support.ray_cluster import LATER_NODE, NODE, FleetClient, add_node, process_at, wait_for
from support.waiting import children_that_run, gone, wait_until
from support.worker_client import prepared_here, setup_of

import fusionloader
from fusionloader.sharing.remote.fleet import FleetLoad
from fusionloader.sharing.remote.protocol import SERVICE, DataMode
from fusionloader.system.transport.connection import connect
from fusionloader.system.transport.errors import TransportError
from fusionloader.transforms.plan.stages import Plan, RandomHorizontalFlip, RandomResizedCrop

CROP = RandomResizedCrop(32, 24, (0.3, 1.0), (0.75, 1.33), ("bilinear",))
PLAN = Plan((CROP, RandomHorizontalFlip(0.5)), None, 32, 24)
pytestmark = pytest.mark.ray
BUSY, IDLE = FleetLoad(1.0, 0.5), FleetLoad(0.1, 0.0)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    path = tmp_path_factory.mktemp("photographs") / "photo.jpg"
    drawn = np.random.default_rng(0)
    contents = []
    for _ in range(3):
        photo(drawn, 90, 70).save(path)
        contents.append(path.read_bytes())
    return contents


def test_workers_prepare_samples_on_other_nodes(cluster, start, encoded):
    fleet = start(workers=2, address=cluster.address)
    addresses = wait_for(fleet, 2)
    assert {address.host for address in addresses} == {NODE}  # not where training is
    for address in addresses:
        with contextlib.closing(FleetClient(fleet, address)) as client:
            assert client.set_up(setup_of(PLAN)).cores == 1
            assert client.prepare(DataMode.ENCODED, encoded) == prepared_here(PLAN, encoded)
        mapped = {os.path.basename(each.path) for each in process_at(address).memory_maps()}
        assert any(name.startswith("_native.") for name in mapped)
        assert "libtorch_cpu.so" not in mapped
    assert fleet.explain() == f"2 remote workers on the Ray cluster at {cluster.address}"
    processes = [process_at(address) for address in addresses]
    fleet.close()
    wait_until(lambda: all(gone(process.pid) for process in processes))


def test_a_worker_speaks_to_nobody_else(cluster, start):
    fleet = start(workers=1, address=cluster.address)
    other = start(workers=1, address=cluster.address)
    (address,) = wait_for(fleet, 1)
    with pytest.raises(TransportError, match="token"):
        connect(address, other.identity, SERVICE, 10.0).close()


def test_a_killed_worker_is_replaced(cluster, start, caplog):
    fleet = start(workers=1, address=cluster.address)
    (first,) = wait_for(fleet, 1)
    process_at(first).kill()
    wait_until(lambda: first not in fleet.addresses())
    (second,) = wait_for(fleet, 1)
    assert second != first
    connect(second, fleet.identity, SERVICE, 10.0).close()
    assert "a worker has ended" in caplog.text


def test_the_process_that_speaks_to_ray_is_started_again(cluster, start, caplog):
    caplog.set_level(logging.INFO, "fusionloader.remote")
    fleet = start(workers=1, address=cluster.address)
    (first,) = wait_for(fleet, 1)
    (control,) = children_that_run("ray_control")
    control.kill()
    wait_until(lambda: "Ray is gone" in fleet.explain())
    wait_until(lambda: set(fleet.addresses()) not in (set(), {first}))
    (second,) = fleet.addresses()
    connect(second, fleet.identity, SERVICE, 10.0).close()
    assert caplog.text.count("training continues without it") == 1
    assert "is back" in caplog.text and "gone" not in fleet.explain()


def test_workers_that_find_no_room_wait_for_it(cluster, start):
    first = start(workers=1, address=cluster.address)
    wait_for(first, 1)
    fleet = start(workers=2, address=cluster.address)
    wait_for(fleet, 1)
    assert "1 more are being started" in fleet.explain()
    first.close()
    wait_for(fleet, 2)


def test_their_number_follows_what_training_needs(cluster, start, encoded):
    fleet = start(workers=(1, 2), address=cluster.address)
    (first,) = wait_for(fleet, 1)

    def told(load, count):
        fleet.report_load(load)
        return len(fleet.addresses()) == count

    wait_until(lambda: told(BUSY, 2))
    (second,) = set(fleet.addresses()) - {first}
    process = process_at(second)
    with contextlib.closing(FleetClient(fleet, second)) as client:
        client.set_up(setup_of(PLAN))
        number = client.send(DataMode.ENCODED, encoded * 100)
        wait_until(lambda: told(IDLE, 1))
        # What it was asked before it left is answered.
        assert list(fleet.addresses()) == [first]
        assert bytes(client.hear().body)[: 32 * 24 * 3] == prepared_here(PLAN, encoded[:1])
        assert number == 1
    wait_until(lambda: gone(process.pid))


def test_workers_end_with_a_training_process_that_is_killed(cluster):
    code = (
        "import time\n"
        "from fusionloader.sharing.remote.ray_fleet import RayFleet\n"
        "from fusionloader.options.remote_settings import Remote\n"
        f"fleet = RayFleet(Remote(workers=1, address={cluster.address!r}))\n"
        "while not fleet.addresses():\n"
        "    time.sleep(0.01)\n"
        "print(*fleet.addresses()[0], flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as training:
        host, port = training.stdout.readline().split()
        process = process_at((host.decode(), int(port)))
        training.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(process.pid))


def test_a_node_with_another_version_is_refused_by_name(cluster, start, monkeypatch, caplog):
    monkeypatch.setattr(fusionloader, "__version__", "0.0.7")
    fleet = start(workers=1, address=cluster.address)
    monkeypatch.undo()
    wait_until(lambda: "and training has 0.0.7: install the same on both" in fleet.explain())
    assert f"the node {NODE} has fusionloader {fusionloader.__version__}" in fleet.explain()
    assert fleet.addresses() == ()


def test_as_many_as_are_free_come_and_more_when_a_node_joins(cluster, start):
    fleet = start(address=cluster.address)
    assert {address.host for address in wait_for(fleet, 2)} == {NODE}
    node = add_node(cluster, LATER_NODE, 1)
    try:  # the last test: until Ray takes a node that crashed as dead, it may wait for it
        assert {address.host for address in wait_for(fleet, 3)} == {NODE, LATER_NODE}
    finally:
        cluster.remove_node(node, allow_graceful=False)
    assert {address.host for address in wait_for(fleet, 2)} == {NODE}
