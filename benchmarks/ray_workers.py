"""How long Ray takes to start, replace and end remote workers, and what it costs training.

Loopback addresses stand for machines: a head, where training is, and two nodes with two CPUs each.
Nodes that crash are killed with all of their processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psutil

from benchmarks.study import parser_of, publish
from fusionloader.cli.measure.report import announce
from fusionloader.options.remote_settings import Remote
from fusionloader.sharing.remote.fleet import FleetLoad
from fusionloader.sharing.remote.ray_fleet import RayFleet

HEAD, NODES = "127.0.0.2", ("127.0.0.3", "127.0.0.4")
CPUS = 2
STORE_BYTES = 80 << 20
LONGEST = 120.0
IDLE_SECONDS = 10.0
HEADER = ("what", "median", "least", "most")
BUSY, IDLE = FleetLoad(1.0, 0.5), FleetLoad(0.1, 0.0)


@contextmanager
def cluster_of_three() -> Iterator[Any]:
    """A Ray cluster, without dashboard and usage statistics."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(
            num_cpus=1,
            node_ip_address=HEAD,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
        )
        for node in NODES:
            add_node(cluster, node)
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any, address: str) -> Any:
    return cluster.add_node(num_cpus=CPUS, node_ip_address=address, object_store_memory=STORE_BYTES)


def seconds_until(reached: Callable[[], bool]) -> float:
    began = time.perf_counter()
    while not reached():
        if time.perf_counter() > began + LONGEST:
            raise TimeoutError("it has not come to that")
        time.sleep(0.002)
    return time.perf_counter() - began


def one_round(cluster: Any, found: dict[str, list[float]]) -> None:
    """Goes through what may happen to workers, and notes the seconds."""
    began = time.perf_counter()
    with closing(RayFleet(Remote(workers=(2, 3), address=cluster.address))) as fleet:
        found["join the cluster, s"].append(time.perf_counter() - began)
        seconds_until(lambda: len(fleet.addresses()) == 2)
        found["two workers from nothing, s"].append(time.perf_counter() - began)

        while fleet.state().needed == 2:
            fleet.report_load(BUSY)
        found["one more worker, s"].append(seconds_until(lambda: len(fleet.addresses()) == 3))
        processes = {each: process_of(each) for each in fleet.addresses()}
        before = set(processes)
        while fleet.state().needed == 3:
            fleet.report_load(IDLE)
        found["one fewer: no longer asked, s"].append(
            seconds_until(lambda: len(fleet.addresses()) == 2)
        )
        (left,) = {processes[each] for each in before - set(fleet.addresses())}
        found["one fewer: its process has ended, s"].append(seconds_until(lambda: ended(left)))

        killed = fleet.addresses()[0]
        process_of(killed).kill()
        found["killed worker: noticed, s"].append(
            seconds_until(lambda: killed not in fleet.addresses())
        )
        found["killed worker: replaced, s"].append(
            seconds_until(lambda: len(fleet.addresses()) == 2)
        )
        control = fleet._control.pid
        found["process that speaks to Ray, MB"].append(
            psutil.Process(control).memory_full_info().uss / 1e6
        )
        found["its share of a core, %"].append(cpu_share(control))
        began = time.perf_counter()
    found["close, s"].append(time.perf_counter() - began)


def crash(cluster: Any, found: dict[str, list[float]]) -> None:
    """Kills a node, and adds it again."""
    with closing(RayFleet(Remote(workers=2, address=cluster.address))) as fleet:
        seconds_until(lambda: len(fleet.addresses()) == 2)
        host = fleet.addresses()[0].host
        nodes = {node.node_ip_address: node for node in cluster.list_all_nodes()}
        cluster.remove_node(nodes[host], allow_graceful=False)
        found["crashed node: noticed, s"].append(
            seconds_until(lambda: host not in {each.host for each in fleet.addresses()})
        )
        found["crashed node: replaced on another, s"].append(
            seconds_until(lambda: len(fleet.addresses()) == 2)
        )
    add_node(cluster, host)


def process_of(address: tuple[str, int]) -> psutil.Process:
    (pid,) = {
        each.pid
        for each in psutil.net_connections("tcp4")
        if each.laddr == tuple(address) and each.status == psutil.CONN_LISTEN
    }
    return psutil.Process(pid)


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def cpu_share(pid: int) -> float:
    before = psutil.Process(pid).cpu_times()
    time.sleep(IDLE_SECONDS)
    after = psutil.Process(pid).cpu_times()
    return 100 * (after.user + after.system - before.user - before.system) / IDLE_SECONDS


def main() -> None:
    parser: argparse.ArgumentParser = parser_of(__doc__, rounds=5)
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    found: dict[str, list[float]] = defaultdict(list)
    with cluster_of_three() as cluster:
        for number in range(options.rounds):
            one_round(cluster, found)
            crash(cluster, found)
            announce(f"round {number + 1}/{options.rounds}")
    import ray

    rows = [
        (what, *(f"{each(values):.2f}" for each in (statistics.median, min, max)))
        for what, values in found.items()
    ]
    publish(options, HEADER, rows, ray=ray.__version__)


if __name__ == "__main__":
    main()
