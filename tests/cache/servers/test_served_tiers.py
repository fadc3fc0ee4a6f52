"""What a server gives away lies in the machine's shared memory."""

import contextlib
import weakref

import pytest
from support.cache_machines import FINGERPRINT, TOKEN
from support.waiting import PATIENCE, wait_until

from fusionloader.cache.range_reading import FileStamp
from fusionloader.cache.servers import requests
from fusionloader.cache.servers.joining import ServedTiers
from fusionloader.cache.servers.server import SERVICE, CacheServer
from fusionloader.cache.tiers.file_store import FileStore, table_bytes
from fusionloader.cache.tiers.store_handles import StoreHandles
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import connect
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import Outgoing

STAMP = FileStamp(3, 7)


def handles(store):
    return StoreHandles({"encoded": store.fd}, {"encoded": store.mapped})


@pytest.fixture
def store():
    return FileStore(10, table_bytes(10) + 64)  # room for one small file


def test_what_one_process_keeps_others_give_away(store):
    first, second = (ServedTiers(handles(store)) for _ in range(2))
    assert second.get(4, STAMP) is None and second.lacks(4, 3)
    assert first.put(4, STAMP, memoryview(b"abc"))
    found = second.get(4, STAMP)
    assert found == b"abc" and found.nbytes == 3
    assert second.get(4, FileStamp(3, 8)) is None and not second.lacks(4, 3)


def test_a_full_store_and_a_wrong_number_are_neither_filled_nor_wanted(store):
    served = ServedTiers(handles(store))
    assert served.put(0, STAMP, memoryview(b"abc"))
    for item in (1, 10, 1 << 40):
        assert not served.lacks(item, 3)
        assert not served.put(item, STAMP, memoryview(b"abc"))
        assert served.get(item, STAMP) is None


def test_a_dataset_that_is_dropped_stays_until_its_answer_is_sent(store):
    stores = {FINGERPRINT: ServedTiers(handles(store))}
    stores[FINGERPRINT].put(4, STAMP, memoryview(b"abc"))
    alive = weakref.ref(stores[FINGERPRINT])
    identity = Identity.of(TOKEN)
    with contextlib.ExitStack() as stack:
        server = CacheServer(Address("127.0.0.2", 0), identity, stores.pop)
        stack.callback(server.close)
        peer = connect(server.address, identity, SERVICE, PATIENCE)
        stack.callback(peer.close)
        asked = requests.encode(FINGERPRINT, [requests.WantedFile(4, STAMP)])
        peer.send(Outgoing(requests.GET, asked), PATIENCE)
        store.close()
        assert peer.receive(PATIENCE, PATIENCE).body == b"abc"
        assert stores == {}
    wait_until(lambda: alive() is None)
