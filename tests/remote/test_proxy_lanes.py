"""Which workers of a large fleet the proxy's lanes go to."""

import os

import pytest
from support.waiting import wait_until

from fusionloader.sharing.remote.offload_metrics import MetricKeys
from fusionloader.sharing.remote.proxy.greeting import RemoteWork
from fusionloader.sharing.remote.proxy.process import Proxy, ProxyConfig
from fusionloader.sharing.remote.remote_counters import LANES, RemoteCounters
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity

NOBODY = [Address(f"127.1.0.{number + 1}", 9) for number in range(LANES + 6)]


@pytest.fixture
def proxy(make_control_block):
    """A proxy in this process, for workers of user code."""
    block = make_control_block(LANES, 2)
    work = RemoteWork(
        plan=None,
        row_bytes=0,
        convert=None,
        pillow="",
        max_pixels=None,
        image=None,
        known_files=(),
        data="auto",
        offload="all",
        tiny_size=1,
        in_flight=1,
        code=b"",
    )
    read, write = os.pipe()
    counters, identity = RemoteCounters.create(), Identity.of(b"a token of this test")
    config = ProxyConfig(
        parent=os.getppid(),
        first_worker=0,
        local_workers=0,
        control_fd=block.control_fd,
        data_fd=block.arena.fd,
        table_fd=-1,
        table_bytes=0,
        message_fd=write,
        orders_fd=read,
        counters_fd=os.dup(counters.fd),
        identity_fd=os.dup(identity.fd),
        channels=3,
        work=work,
        keys=MetricKeys("", "", 0, (), ""),
    )
    made = Proxy(config)
    yield made
    block.manager.stop()
    for lane in made._lanes.values():
        lane.leave()
    wait_until(lambda: all(lane.is_over for lane in made._lanes.values()))
    for fd in (read, write):
        os.close(fd)


def test_a_worker_that_was_just_left_alone_gets_no_free_lane(proxy):
    proxy._wanted = dict.fromkeys(NOBODY[: LANES - 4])
    proxy._tend()
    wait_until(lambda: all(lane.has_failed for lane in proxy._lanes.values()))
    proxy._wanted = dict.fromkeys(NOBODY)
    proxy._tend()
    opened = [lane.address for lane in proxy._lanes.values() if not lane.is_leaving]
    assert opened == NOBODY[LANES - 4 : LANES]
