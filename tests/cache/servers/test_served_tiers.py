"""What a server gives away lies in the machine's shared memory."""

import weakref

import pytest
from support.cache_machines import FINGERPRINT

from fusionloader.cache.range_reading import FileStamp
from fusionloader.cache.servers import requests
from fusionloader.cache.servers.joining import ServedTiers
from fusionloader.cache.servers.server import SERVICE, CacheService
from fusionloader.cache.tiers.file_store import FileStore, table_bytes
from fusionloader.cache.tiers.store_handles import StoreHandles
from fusionloader.system.transport.messages import Message

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
    answer_to = CacheService(stores.pop).services[SERVICE].begin()
    asked = requests.encode(FINGERPRINT, [requests.WantedFile(4, STAMP)])
    answer = answer_to(Message(requests.GET, asked))
    store.close()
    assert stores == {} and bytes(answer.body[0]) == b"abc"
    del answer
    assert alive() is None
