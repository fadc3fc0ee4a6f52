"""A cache that two machines hold a part of each: processes at 127.0.0.2 and 127.0.0.3."""

import contextlib
import os
import random
import select
import signal
import time
from types import SimpleNamespace

import pytest
from support.cache_machines import FINGERPRINT, Machine, Server, files_in
from support.waiting import PATIENCE, wait_until

from fusionloader.cache.servers.owners import Owners

COUNT = 24
ITEMS = list(range(COUNT))
HOSTS = ("127.0.0.2", "127.0.0.3")


@pytest.fixture
def files(tmp_path):
    return files_in(tmp_path, COUNT)


@contextlib.contextmanager
def serving(*servers):
    try:
        yield servers
    finally:
        for server in servers:
            server.end()


@pytest.fixture
def pair():
    """This machine's server, and the other one's."""
    with serving(*map(Server, HOSTS)) as servers:
        yield servers


def addresses(servers):
    return [each if isinstance(each, str) else each.address for each in servers]


def owned_by(server, servers):
    owners = Owners(addresses(servers), FINGERPRINT)
    (name,) = addresses([server])
    return [item for item in ITEMS if owners.owner(item) == name]


def parts(items, data):
    return {item: data[item] for item in items}


def wait_for_given(server, count):
    """What is given is not answered."""
    wait_until(lambda: len(server.ask("held")) == count, "not all that was given is there")


def make_storage_wrong(paths):
    """Whoever reads the files from now on has other bytes, under the same stamps."""
    for path in paths:
        info = path.stat()
        path.write_bytes(b"x" * info.st_size)
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def test_two_machines_read_each_file_once_and_never_again(pair, files):
    paths, data = files
    drawn = random.Random(0)
    for epoch in range(3):
        order = drawn.sample(ITEMS, COUNT)
        reads = 0
        for server, items in zip(pair, (order[: COUNT // 2], order[COUNT // 2 :]), strict=True):
            found, own_reads = server.ask("epoch", addresses(pair), paths, items)
            assert found == parts(items, data)
            reads += own_reads
        assert reads == (0 if epoch else COUNT)
        for server in pair:
            wait_for_given(server, len(owned_by(server, pair)))
        make_storage_wrong(paths)


def test_what_another_server_owns_is_read_given_and_then_held_there(pair, files):
    here, there = pair
    paths, data = files
    theirs = owned_by(there, pair)
    first = Machine(here, pair, paths)
    assert first.epoch(ITEMS) == parts(theirs, data)
    wait_for_given(there, len(theirs))
    make_storage_wrong(paths)
    second = Machine(here, pair, paths)
    assert second.epoch(ITEMS) == parts(theirs, data)
    for machine, hits in ((first, 0), (second, len(theirs))):
        assert (machine.hits, machine.misses) == (hits, len(theirs) - hits)
        assert machine.warnings == []


def test_bytes_of_several_servers_stay_until_the_next_call(tmp_path):
    paths, data = files_in(tmp_path, COUNT)
    hosts = [f"127.0.0.{number}" for number in (2, 3, 4)]
    with serving(*map(Server, hosts)) as servers:
        here, *others = servers
        theirs = sorted(owned_by(others[0], servers) + owned_by(others[1], servers))
        machine = Machine(here, servers, paths)
        machine.fetcher.bring(ITEMS)
        wait_for_given(others[1], len(owned_by(others[1], servers)))
        wait_for_given(others[0], len(owned_by(others[0], servers)))
        brought = machine.fetcher.bring(ITEMS)
        assert {file.item: bytes(file.data) for file in brought} == parts(theirs, data)
        others[0].end()  # what it had to say moves to the others: the second is asked twice
        brought = machine.fetcher.bring(ITEMS)
        left = Owners(addresses(servers), FINGERPRINT)
        expected = [item for item in ITEMS if left.owner(item, [others[0].address]) != here.address]
        assert {file.item: bytes(file.data) for file in brought} == parts(expected, data)


def test_an_answer_that_came_while_storage_was_slow_is_taken(tmp_path, monkeypatch):
    paths, _ = files_in(tmp_path, COUNT)
    hosts = [f"127.0.0.{number}" for number in (2, 3, 4)]
    with serving(*map(Server, hosts)) as servers:
        here, other, late = servers
        machine = Machine(here, servers, paths)
        expected = machine.fetcher.bring(ITEMS)
        late.signal(signal.SIGSTOP)
        receive, slept = machine.fetcher._receive, []

        def read_slowly(name, share):
            receive(name, share)
            if name == other.address and not slept:  # storage takes longer than answers may
                late.signal(signal.SIGCONT)
                select.select([machine.fetcher._peers[late.address]], [], [])
                slept.append(10 * PATIENCE)

        clock = SimpleNamespace(**vars(time))
        clock.monotonic = lambda: time.monotonic() + sum(slept)
        monkeypatch.setattr(machine.fetcher, "_receive", read_slowly)
        monkeypatch.setattr("fusionloader.cache.servers.fetcher.time", clock)
        brought = machine.fetcher.bring(ITEMS)
        assert {each.item for each in brought} == {each.item for each in expected}
        assert machine.warnings == []


def test_a_server_without_room_is_given_nothing(files):
    paths, data = files
    with serving(Server(HOSTS[0]), Server(HOSTS[1], budget=0)) as (here, there):
        machine = Machine(here, (here, there), paths)
        theirs = owned_by(there, (here, there))
        for _ in range(2):
            assert machine.epoch(ITEMS) == parts(theirs, data)
        assert machine.misses == 2 * len(theirs)
        assert there.ask("held") == []


def test_a_file_that_was_replaced_is_read_anew(pair, files):
    here, there = pair
    paths, data = files
    theirs = owned_by(there, pair)
    machine = Machine(here, pair, paths)
    machine.epoch(ITEMS)
    wait_for_given(there, len(theirs))
    resized, touched = theirs[:2]
    paths[resized].write_bytes(b"another file")
    paths[touched].write_bytes(data[touched][::-1])
    os.utime(paths[touched], ns=(0, 0))
    changed = {resized: b"another file", touched: data[touched][::-1]}
    assert machine.epoch(ITEMS) == parts(theirs, data) | changed
    assert machine.misses == len(theirs) + 2
    assert machine.epoch(ITEMS) == parts(theirs, data) | changed


def test_files_that_cannot_be_read_are_left_to_who_asked(pair, files):
    here, there = pair
    paths, data = files
    missing, empty, *readable = owned_by(there, pair)
    paths[missing].unlink()
    paths[empty].write_bytes(b"")
    machine = Machine(here, pair, paths)
    assert machine.epoch(ITEMS) == parts(readable, data)
    assert machine.warnings == []


# ---- servers that are gone ---------------------------------------------------------------------


def test_a_killed_server_is_replaced_by_storage_and_found_again(pair, files):
    here, there = pair
    paths, data = files
    theirs = owned_by(there, pair)
    machine = Machine(here, pair, paths, absence=0.01)
    machine.epoch(ITEMS)
    there.end()
    assert machine.epoch(ITEMS) == {}  # this machine's own by now
    assert len(machine.warnings) == 1
    host, port = there.address.split(":")
    with serving(Server(host, port=int(port))):
        wait_until(lambda: machine.epoch(ITEMS) == parts(theirs, data), "it is not asked again")
    assert len(machine.warnings) == 1
    assert machine.warnings[0].startswith(f"the cache server {there.address} has closed the conn")
    assert "other servers and storage stand in for it, and it is tried again" in machine.warnings[0]


def test_a_stopped_server_holds_nobody_up_for_longer_than_the_deadline(pair, files):
    here, there = pair
    paths, _ = files
    machine = Machine(here, pair, paths, absence=PATIENCE)
    machine.epoch(ITEMS)
    there.signal(signal.SIGSTOP)
    machine.be_impatient()
    assert machine.epoch(ITEMS, tiny=COUNT) == {}
    assert machine.epoch(ITEMS) == {}
    assert len(machine.warnings) == 1
    assert f"{there.address} does not answer in time" in machine.warnings[0]


def test_a_server_that_stops_while_it_is_given_samples_is_gone(pair, tmp_path):
    here, there = pair
    (item, *_) = owned_by(there, pair)
    path = tmp_path / "large"
    path.write_bytes(bytes(30_000_000))
    machine = Machine(here, pair, {item: path}, absence=PATIENCE)
    read = machine.fetcher._read

    def stop_then_read(item):
        there.signal(signal.SIGSTOP)
        machine.be_impatient()
        return read(item)

    machine.fetcher._read = stop_then_read
    assert machine.epoch([item]) == {item: bytes(30_000_000)}
    assert len(machine.warnings) == 1


# ---- servers that are none of ours -------------------------------------------------------------


def test_a_server_with_another_token_is_named_and_storage_is_read(files):
    with serving(Server(HOSTS[0]), Server(HOSTS[1], token=b"the token of somebody else")) as pair:
        machine = Machine(pair[0], pair, files[0])
        assert machine.epoch(ITEMS) == {}
        assert len(machine.warnings) == 1
        assert f"{pair[1].address} has another token" in machine.warnings[0]
        assert pair[1].ask("held") == []


def test_a_server_of_another_dataset_is_named_and_storage_is_read(files):
    with serving(Server(HOSTS[0]), Server(HOSTS[1], fingerprint=bytes(32))) as pair:
        machine = Machine(pair[0], pair, files[0])
        assert machine.epoch(ITEMS) == {}
        assert len(machine.warnings) == 1
        assert f"{pair[1].address} holds no cache of this dataset" in machine.warnings[0]


@pytest.mark.parametrize(
    ("address", "why"),
    [("127.0.0.3:1", "cannot be reached"), ("no-such.invalid:7071", "a name that is not known")],
)
def test_a_wrong_address_is_named_and_storage_is_read(files, address, why):
    with serving(Server(HOSTS[0])) as (here,):
        machine = Machine(here, (here, address), files[0])
        assert machine.epoch(ITEMS) == {}
        assert len(machine.warnings) == 1
        assert address in machine.warnings[0] and why in machine.warnings[0]
