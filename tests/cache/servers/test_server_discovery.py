"""Which servers a job has: listed by the user, or found through the job's store."""

import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore, TCPStore

from fusionloader.cache.servers import discovery
from fusionloader.cache.servers.discovery import (
    HERE_VARIABLE,
    Machines,
    agree_on_token,
    exchange,
    find_job_store,
    listed_servers,
    own_host,
    read_machines,
)
from fusionloader.cache.servers.owners import Servers
from fusionloader.system.transport.address import Address

FOREIGN = "192.0.2.1:7071"  # set aside for documentation (RFC 5737)
TORCHRUN = {
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_the_listed_server_that_is_this_machine_is_found():
    listed = [FOREIGN, "127.0.0.2:7071"]
    assert listed_servers(listed, {}) == Servers(tuple(listed), listed[1])


def test_where_several_are_this_machine_the_environment_says_which():
    listed = ["127.0.0.2:7071", "127.0.0.3:7071"]
    found = listed_servers(listed, {HERE_VARIABLE: listed[0]})
    assert found == Servers(tuple(listed), listed[0])


@pytest.mark.parametrize(
    ("listed", "here", "message"),
    [
        (["127.0.0.2"], None, 'written as "host:port", not .127.0.0.2'),
        (["127.0.0.2:0", FOREIGN], None, "name the port of '127.0.0.2:0'"),
        ([FOREIGN, "127.0.0.2:1", FOREIGN], None, "names one twice"),
        ([FOREIGN], None, "none of 192.0.2.1:7071 is this machine's"),
        (["127.0.0.2:1", "127.0.0.3:1"], None, "127.0.0.2:1 and 127.0.0.3:1 are this machine's"),
        (["127.0.0.2:1"], "127.0.0.3:1", "is '127.0.0.3:1', not one of 127.0.0.2:1"),
        (["no-such-host.invalid:1"], None, "'no-such-host.invalid' is not known here"),
        ([], None, "none of  is this"),
    ],
)
def test_lists_that_cannot_be_right_are_refused(listed, here, message):
    with pytest.raises(ValueError, match=message):
        listed_servers(listed, {HERE_VARIABLE: here} if here else {})


def test_torchrun_says_how_many_machines_there_are():
    assert read_machines(TORCHRUN) == Machines(1, 2, True, Address("127.0.0.1", 29500))
    assert read_machines(TORCHRUN | {"GROUP_WORLD_SIZE": "1"}) is None
    assert read_machines({}) is None


@pytest.mark.parametrize("missing", ["GROUP_RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_an_environment_that_lacks_something_is_refused(missing):
    environ = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(ValueError, match=f"no {missing} here: list the servers"):
        read_machines(environ)


@pytest.mark.parametrize("name", ["GROUP_RANK", "MASTER_PORT", "GROUP_WORLD_SIZE"])
def test_an_environment_with_words_for_numbers_is_refused(name):
    with pytest.raises(ValueError, match="cannot read the environment of torchrun: .*two"):
        read_machines(TORCHRUN | {name: "two"})


def machines(number, is_first_rank=True):
    return Machines(number, 2, is_first_rank, Address("127.0.0.1", 29500))


def test_all_processes_of_a_job_learn_the_servers_and_one_token():
    store, found = HashStore(), {}

    def join(number, first):
        here = machines(number, first)
        port = 7000 + number if first else None
        servers = exchange(store, here, "a cache", port)
        found[number, first] = (servers, agree_on_token(store, here, "a cache"))

    processes = [(number, first) for number in (1, 0) for first in (False, True)]
    threads = [threading.Thread(target=join, args=each) for each in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    addresses = ("127.0.0.1:7000", "127.0.0.1:7001")
    tokens = {token for _, token in found.values()}
    assert len(tokens) == 1 and len(tokens.pop()) == 32
    assert {key: servers for key, (servers, _) in found.items()} == {
        (number, first): Servers(addresses, addresses[number]) for number, first in processes
    }


def test_a_restarted_job_does_not_find_the_servers_of_the_attempt_before():
    store, found = HashStore(), []
    for attempt in ("0", "1"):
        environ = {"TORCHELASTIC_RESTART_COUNT": attempt, "GROUP_RANK": "0"}
        here = read_machines(TORCHRUN | environ)
        store.set(here.key("a cache", 1), f"127.0.0.1:{attempt}")
        found.append(
            (exchange(store, here, "a cache", 7000), agree_on_token(store, here, "a cache"))
        )
    (first, one), (second, other) = found
    assert first.addresses[1] == "127.0.0.1:0" and second.addresses[1] == "127.0.0.1:1"
    assert one != other


def test_two_caches_of_a_job_have_tokens_of_their_own():
    store = HashStore()
    assert len({agree_on_token(store, machines(0), name) for name in "ab"}) == 2


def test_a_machine_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(discovery, "_SECONDS", 0.01)
    with pytest.raises(ValueError, match="machine 0 has not started its cache server"):
        exchange(HashStore(), machines(1), "a cache", 7001)


def test_another_machine_is_told_where_the_master_can_reach_this_one(monkeypatch):
    monkeypatch.setattr(discovery, "is_own", lambda host: False)
    assert own_host(machines(1)) == "127.0.0.1"


def test_the_store_is_that_of_torchruns_agent_or_there_is_an_error():
    server = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    here = Machines(0, 2, True, Address("127.0.0.1", server.port))
    found = find_job_store(here, {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    found.set("key", "value")
    assert server.get("key") == b"value"
    with pytest.raises(ValueError, match="init_process_group.. before the first iter"):
        find_job_store(here, {})
