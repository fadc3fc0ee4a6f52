"""A real Ray cluster: each of its nodes has a loopback address, all on this machine."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from fusionloader.sharing.remote.protocol import SERVICE
from fusionloader.sharing.remote.ray_fleet import RayFleet
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import connect
from support.waiting import PATIENCE, wait_until
from support.worker_client import WorkerClient

HEAD, NODE, LATER_NODE = "127.0.0.2", "127.0.0.3", "127.0.0.4"
_started: defaultdict[int, set[psutil.Process]] = defaultdict(set)  # by cluster
_STORE_BYTES = 80 << 20  # of each node, near the least that Ray takes


@contextlib.contextmanager
def running(nodes: Mapping[str, int], head_cpus: int = 1, head: str = HEAD) -> Iterator[Any]:
    """A head, where training is, and other nodes with so many CPUs; all end with the block."""
    cluster = Cluster()
    try:
        add_node(cluster, head, head_cpus, include_dashboard=False)
        for address, cpus in nodes.items():
            add_node(cluster, address, cpus)
        yield cluster
    finally:
        cluster.shutdown()
        for process in _started.pop(
            id(cluster), ()
        ):  # agents outlive a raylet that was killed by a minute
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def add_node(cluster: Any, address: str, cpus: int, **others: Any) -> Any:
    before = set(psutil.Process().children(recursive=True))
    node = cluster.add_node(
        num_cpus=cpus, node_ip_address=address, object_store_memory=_STORE_BYTES, **others
    )
    _started[id(cluster)].update(set(psutil.Process().children(recursive=True)) - before)
    return node


class FleetClient(WorkerClient):
    """Asks a worker of a fleet, with the fleet's identity."""

    def __init__(self, fleet: RayFleet, address: Address) -> None:
        self.connection = connect(address, fleet.identity, SERVICE, PATIENCE)
        self._number = 0


def wait_for(fleet: RayFleet, count: int) -> list[Address]:
    """Waits until so many workers may be asked; returns their addresses."""
    wait_until(lambda: len(fleet.addresses()) == count, f"there are not {count} workers")
    return list(fleet.addresses())


def process_at(address: Address) -> psutil.Process:
    """The process that listens at an address."""
    for found in psutil.net_connections("tcp4"):
        if found.laddr == tuple(address) and found.status == psutil.CONN_LISTEN:
            return psutil.Process(found.pid)
    raise AssertionError(f"nothing listens at {address}")
