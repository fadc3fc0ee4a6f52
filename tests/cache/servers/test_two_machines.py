"""Two loaders on two machines with one cache, each with memory of its own."""

import os
import random
import shutil
import signal
import socket
from datetime import timedelta

import numpy as np
import pytest
from support.cache_job_of_machines import JobMachine, free_addresses, loader_of
from support.waiting import PATIENCE, wait_until
from torch.distributed import TCPStore

from fusionloader import Cache
from fusionloader.cache.servers.discovery import HERE_VARIABLE

COUNT = 40


@pytest.fixture
def folder(image_folder, tmp_path):
    return shutil.copytree(image_folder, tmp_path / "images")


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("a token that both machines know")
    path.chmod(0o600)
    return path


@pytest.fixture(params=[PATIENCE])
def machines(folder, token_file, request):
    servers = free_addresses("127.0.0.2", "127.0.0.3")
    made = [
        JobMachine(folder, {HERE_VARIABLE: here}, servers, token_file, request.param)
        for here in servers
    ]
    yield made
    for machine in made:
        machine.end()


def halves(epoch):
    order = random.Random(epoch).sample(range(COUNT), COUNT)
    return order[: COUNT // 2], order[COUNT // 2 :]


def expected(folder, halves_of_epochs):
    """The batches of each machine in each epoch, without a cache."""
    found = []
    items = [[], []]
    loaders = [loader_of(folder, each) for each in items]
    for both in halves_of_epochs:
        for mine, half in zip(items, both, strict=True):
            mine[:] = half
        found.append([[[t.numpy().copy() for t in b] for b in loader] for loader in loaders])
    return found


def assert_same(ours, reference):
    for batch, wanted in zip(ours, reference, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(batch, wanted, strict=True))


def held(machines):
    return sum(machine.stats().tiers["encoded"].images for machine in machines)


def spoil(folder):
    """Whoever reads the files from now on finds no images, under the same stamps."""
    for path in folder.glob("*/*.jpg"):
        info = path.stat()
        path.write_bytes(bytes(info.st_size))
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def test_the_second_epoch_needs_no_storage_and_the_batches_are_the_same(machines, folder):
    orders = [halves(epoch) for epoch in range(3)]
    reference = expected(folder, orders)
    for machine in machines:  # both serve: the share of one that does not is the other's
        machine.epoch([])
    for epoch, order in enumerate(orders):
        for machine, half in zip(machines, order, strict=True):
            machine.begin(half)
        both = [machine.finish() for machine in machines]
        for (batches, _), wanted in zip(both, reference[epoch], strict=True):
            assert_same(batches, wanted)
        counts = [stats for _, stats in both]
        wait_until(lambda: held(machines) == COUNT, "not all that was given is there")
        assert sum(each.epoch_misses for each in counts) == (0 if epoch else COUNT)
        spoil(folder)
    assert all(each.tiers["remote"].hits > 0 for each in counts)


def test_machines_that_torchrun_starts_find_each_other(folder):
    """The store is that of torchrun's agent; both machines draw nothing but one token from it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=PATIENCE))
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "GROUP_WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    machines = [JobMachine(folder, common | {"GROUP_RANK": rank}, "auto") for rank in "01"]
    try:
        for epoch in range(2):
            for machine, half in zip(machines, halves(epoch), strict=True):
                machine.begin(half)
            both = [machine.finish()[1] for machine in machines]
            assert sum(each.epoch_misses for each in both) == (0 if epoch else COUNT)
            wait_until(lambda: held(machines) == COUNT, "not all that was given is there")
    finally:
        for machine in machines:
            machine.end()


def test_a_list_without_a_token_is_refused(folder):
    loader = loader_of(folder, [0], cache=Cache("64MiB", servers=["127.0.0.2:7071"]))
    with pytest.raises(ValueError, match="need a token_file, the same on all machines"):
        iter(loader)


def test_a_port_that_is_in_use_is_named(folder, token_file):
    with socket.create_server(("127.0.0.2", 0)) as taken:
        address = f"127.0.0.2:{taken.getsockname()[1]}"
        cache = Cache("64MiB", servers=[address], token_file=token_file)
        with pytest.raises(OSError, match=f"{address}.*use"):
            iter(loader_of(folder, [0], cache=cache))


def test_it_is_explained_where_there_are_other_machines(folder, token_file, monkeypatch):
    def said(servers, token_file=token_file):
        cache = Cache("64MiB", servers=servers, token_file=token_file)
        return "cache servers" in str(loader_of(folder, [0], cache=cache).explain())

    assert said(["127.0.0.2:7071"])
    assert not said(None, None) and not said("auto")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    for name in ("MASTER_PORT", "GROUP_RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    assert said("auto")


def test_a_machine_that_is_gone_costs_reads_and_no_sample(machines, folder):
    everything = list(range(COUNT))
    orders = [halves(0), (everything, everything)]
    reference = expected(folder, orders)
    staying, leaving = machines
    for machine, half in zip(machines, orders[0], strict=True):
        machine.epoch(half)
    leaving.end()
    batches, stats = staying.epoch(everything)
    assert_same(batches, reference[1][0])
    assert 0 < stats.epoch_misses < COUNT


@pytest.mark.parametrize("machines", [0.2], indirect=True, ids=["0.2 s"])
def test_a_machine_that_is_stopped_costs_reads_and_no_sample(machines, folder):
    orders = [halves(epoch) for epoch in range(2)]
    reference = expected(folder, orders)
    staying, leaving = machines
    for machine, half in zip(machines, orders[0], strict=True):
        machine.epoch(half)
    os.kill(leaving.process.pid, signal.SIGSTOP)
    batches, _ = staying.epoch(orders[1][0])
    assert_same(batches, reference[1][0])
