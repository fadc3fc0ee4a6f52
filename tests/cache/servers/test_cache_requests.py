"""What a cache server answers, to bytes that may be anybody's."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cache_machines import FINGERPRINT, TOKEN, DictStore

from fusionloader.cache.range_reading import FileStamp
from fusionloader.cache.servers import requests
from fusionloader.cache.servers.requests import Status, WantedFile
from fusionloader.cache.servers.server import SERVICE, CacheServer
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import connect
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import REFUSED, Outgoing


@pytest.fixture(scope="module")
def asked():
    """Sends a message to a server that holds sample 1; returns the answer's parts."""
    store = DictStore()
    store.put(1, FileStamp(3, 7), memoryview(b"abc"))
    identity = Identity.of(TOKEN)
    server = CacheServer(Address("127.0.0.2", 0), identity, {FINGERPRINT: store}.get)
    with contextlib.closing(server):
        end = connect(server.address, identity, SERVICE, 60)

        def ask(message):
            end.send(message, 60)
            answer = end.receive(60, 60)
            return answer.kind, answer.head, bytes(answer.body)

        yield ask
        end.close()


def get(*wanted, fingerprint=FINGERPRINT):
    return Outgoing(requests.GET, requests.encode(fingerprint, wanted))


def test_what_is_there_comes_with_a_reason_for_what_does_not(asked):
    wanted = [
        WantedFile(0, FileStamp(3, 7)),
        WantedFile(1, FileStamp(3, 7)),
        WantedFile(1, FileStamp(3, 8)),
    ]
    wanted.append(WantedFile(2, FileStamp(1 << 50, 0)))
    statuses = [Status.ABSENT, Status.HIT, Status.UNWANTED, Status.UNWANTED]
    assert asked(get(*wanted)) == (requests.ITEMS, bytes(statuses), b"abc")


def test_another_dataset_is_refused_by_name(asked):
    kind, head, _ = asked(get(WantedFile(1, FileStamp(3, 7)), fingerprint=bytes(32)))
    assert (kind, head) == (REFUSED, b"holds no cache of this dataset")


@given(kind=st.integers(requests.GET, requests.GIVE + 1), head=st.binary(max_size=120))
def test_nothing_that_is_asked_ends_the_server(asked, kind, head):
    if kind != requests.GIVE or b"".join([head])[:32] != FINGERPRINT:
        kind = requests.GET if kind == requests.GIVE else kind
        assert asked(Outgoing(kind, head))[0] in (requests.ITEMS, REFUSED)
    assert asked(get(WantedFile(1, FileStamp(3, 7))))[2] == b"abc"


@pytest.mark.parametrize("body", [b"", b"abc", b"abcde"])
def test_given_bytes_of_another_length_are_refused(asked, body):
    head = requests.encode(FINGERPRINT, [WantedFile(5, FileStamp(4, 7))])
    kind, text, _ = asked(Outgoing(requests.GIVE, head, [body]))
    assert kind == REFUSED and b"bytes were given for [4]" in text
