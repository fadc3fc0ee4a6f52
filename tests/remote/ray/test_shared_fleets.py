"""Ranks that share the workers which Ray starts, on a real cluster."""

import contextlib
import logging
import os
import signal
import threading
import time

import psutil
import pytest
from ranks.job import Job, children
from support.ray_cluster import process_at, wait_for
from support.waiting import PATIENCE, children_that_run, gone, wait_until

from fusionloader.sharing.ranks.discovery import JobRanks
from fusionloader.sharing.remote.fleet import FleetLoad
from fusionloader.sharing.remote.protocol import SERVICE
from fusionloader.sharing.remote.ray_control.connection import RayConnection
from fusionloader.sharing.remote.ray_control.messages import Start
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import connect

pytestmark = pytest.mark.ray


@pytest.fixture
def start_ranks(start, cluster, request):
    """Starts fleets of ranks of one job, in this process."""

    def start_ranks(count, **settings):
        settings = {"workers": 1, "address": cluster.address} | settings
        address = f"job of {request.node.name}"
        return [start(1, JobRanks(rank, count, address), **settings) for rank in range(count)]

    return start_ranks


def assert_served(fleet):
    for address in fleet.addresses():
        connect(address, fleet.identity, SERVICE, 10.0).close()


def of_rays(rank):
    """Processes that talk to Ray and were started by a rank."""
    found = []
    for child in children(rank):
        with contextlib.suppress(psutil.Error):
            if any("ray_control" in word for word in child.cmdline()):
                found.append(child)
    return found


def test_ranks_use_the_same_workers_until_the_last_one_leaves(start_ranks, cluster, caplog):
    caplog.set_level(logging.DEBUG, "fusionloader.remote")
    first, second = start_ranks(2)
    addresses = wait_for(first, 2)
    wait_for(second, 2)
    assert set(second.addresses()) == set(addresses) and second.addresses()[0] != addresses[0]
    assert_served(first)
    assert_served(second)
    assert first.state() == second.state() == (2, 1, 2)
    text = f"2 remote workers on the Ray cluster at {cluster.address}; shared by 2 of 2 ranks"
    assert first.explain() == f"{text}; this rank needs 1"
    assert "rank 1 needs 1 remote workers, the fleet has" in caplog.text
    assert len(children_that_run("ray_control")) == 1
    first.close()
    (left,) = wait_for(second, 1)
    assert left in addresses and second.state() == (1, 1, 1)
    assert "rank 0 needs no remote workers, the fleet has" in caplog.text
    assert_served(second)
    worker = process_at(left)
    second.close()
    wait_until(lambda: gone(worker.pid))
    assert not children_that_run("ray_control")


def test_a_rank_may_come_while_the_last_one_leaves(start_ranks):
    (first,) = start_ranks(1)
    wait_for(first, 1)
    leaving = threading.Thread(target=first.close)
    leaving.start()
    (second,) = start_ranks(1)
    leaving.join()
    wait_for(second, 1)
    assert_served(second)


def test_workers_that_a_rank_no_longer_needs_go_on_for_another(start_ranks):
    first, second = start_ranks(2, workers=(0, 2))

    def first_needs(count, first_load, second_load):
        first.report_load(first_load)
        second.report_load(second_load)
        return first.state().needed == count

    wait_until(lambda: first_needs(2, FleetLoad(1.0, 0.5), FleetLoad(0.0, 0.0)))
    addresses = set(wait_for(second, 2))
    assert second.state() == (2, 0, 2)
    wait_until(lambda: first_needs(0, FleetLoad(0.0, 0.0), FleetLoad(0.9, 0.0, 1.0)))
    wait_until(lambda: second.state() == (2, 2, 2))
    assert set(first.addresses()) == set(second.addresses()) == addresses


def test_a_rank_with_a_fixed_number_keeps_workers_busy_too(start, cluster):
    settings = {"address": cluster.address}
    first = start(1, JobRanks(0, 2, "fixed and range"), workers=1, **settings)
    second = start(1, JobRanks(1, 2, "fixed and range"), workers=(1, 2), **settings)
    wait_for(first, 2)
    wait_for(second, 2)

    def report():
        first.report_load(FleetLoad(0.6, 0.0, 1.0))
        second.report_load(FleetLoad(0.4, 0.5, 1.0))
        return second.state().needed == 2

    wait_until(report)
    assert first.state().needed == 1


def test_it_is_said_why_a_connection_is_refused():
    address, deadline = f"fusionloader-{os.getpid()}-refuses", time.monotonic() + PATIENCE
    start = Start(None, "1.0", "auto", None, None, (1, 1), 1, 1.0)
    with fd_messages.listen(address, 1) as listener:
        connection = RayConnection(address, start, deadline, is_alone=False)
        with listener.accept()[0] as served:
            fd_messages.send(served, FdMessage({"refused": "all of its open files are in use"}))
            with pytest.raises(ConnectionError, match="all of its open files are in use"):
                connection.joined(deadline)


def test_ranks_meet_again_when_the_process_that_speaks_to_ray_has_died(start_ranks):
    fleets = start_ranks(2)
    before = set(wait_for(fleets[0], 2))
    (control,) = children_that_run("ray_control")
    control.kill()
    for fleet in fleets:
        wait_until(lambda fleet=fleet: set(fleet.addresses()) not in (set(), before))
        wait_for(fleet, 2)
        assert_served(fleet)
    assert set(fleets[0].addresses()) == set(fleets[1].addresses())


def test_with_user_code_each_rank_has_its_own_workers(start_ranks):
    first, second = start_ranks(2, user_code=True)
    assert not set(wait_for(first, 1)) & set(wait_for(second, 1))
    assert "not shared with other ranks: with user code each rank has its own" in first.explain()


def test_no_batch_is_lost_and_no_worker_left_when_the_rank_that_began_is_killed(
    cluster, image_folder
):
    with Job(image_folder, large_rank=1) as job:
        expected = job.finish()
    with Job(image_folder, large_rank=1, ray=cluster.address) as job:
        for rank in job.ranks:
            wait_until(
                lambda rank=rank: any(map(int, rank.of("remote"))) and "2 2" in rank.of("fleet"),
                "the ranks do not share two workers",
            )
        ((owner, control),) = [(rank, found) for rank in job.ranks for found in of_rays(rank)]
        owner.process.send_signal(signal.SIGKILL)
        (other,) = (rank for rank in job.ranks if rank is not owner)
        seen = len(other.of("fleet"))
        wait_until(lambda: "1 1" in other.of("fleet")[seen:], "its worker is not ended")
        found, stats = other.finish()
        assert found == expected[job.ranks.index(other)]
    wait_until(lambda: gone(control.pid), "the process that talks to Ray goes on")
    workers = {Address.parse(worker["address"]) for worker in stats["remote"]["workers"]}
    assert len(workers) == 2
    wait_until(lambda: not workers & listening(), "an actor is left")


def listening():
    found = psutil.net_connections("tcp4")
    return {tuple(each.laddr) for each in found if each.status == psutil.CONN_LISTEN}
