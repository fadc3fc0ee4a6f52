"""Ranges of URLs: retries, permanent errors, and messages."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import pytest
from support.faulty_server import serving
from support.waiting import PATIENCE

from fusionloader.cache.range_reading import FileRange
from fusionloader.data.sources import UrlUnreadable
from fusionloader.data.sources.streams.object_store import ObjectStore
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.data.sources.url_errors import ServerFailed, UrlAbsent, UrlDenied
from fusionloader.data.sources.url_reading import read_url_range
from fusionloader.scheduler.retries import Hedging

DATA = bytes(range(256)) * 64
RETRIED = (500, 503, 429, "cut", "reset", "hang")


@pytest.fixture
def server():
    with serving({"a.bin": DATA}) as state:
        yield state


def run(work, **settings):
    """Returns the result of ``work`` with a store, and the store's counts."""
    given = {"timeout": PATIENCE, "retries": 2, "hedge": False, **settings}

    async def main():
        store = ObjectStore(ReadSettings(**given))
        try:
            return await work(store), store.counts
        finally:
            await store.close()

    return asyncio.run(main())


@pytest.mark.parametrize("fault", RETRIED)
def test_what_may_pass_is_sent_again(server, fault):
    # aiohttp sends again by itself, once, what was reset before any answer.
    server.faults.extend([fault] * (2 if fault == "reset" else 1))
    timeout = 2.0 if fault == "hang" else PATIENCE  # of the answer to the second attempt as well
    data, counts = run(lambda store: store.read(server.url("a.bin"), 100, 900), timeout=timeout)
    assert data == DATA[100:900]
    assert (counts.requests, counts.retries, counts.failures) == (2, 1, 0)


@pytest.mark.parametrize("fault", RETRIED)
def test_what_does_not_pass_is_given_up_and_says_how_often_it_was_tried(server, fault):
    server.fault_of = lambda asked: fault
    with pytest.raises(ServerFailed, match=r"a.bin', bytes 100 to 899 .*3 attempts") as caught:
        timeout = 0.4 if fault == "hang" else PATIENCE
        run(lambda store: store.read(server.url("a.bin"), 100, 900), timeout=timeout)
    assert caught.value.status == (fault if isinstance(fault, int) else None)
    assert len(server.ranges()) == (6 if fault == "reset" else 3)


@pytest.mark.parametrize(
    ("status", "kind", "remedy"),
    [
        (401, UrlDenied, "storage_options={'headers'"),
        (403, UrlDenied, "storage_options={'headers'"),
        (404, UrlAbsent, "check the URL"),
        (416, UrlUnreadable, "the request itself is refused"),
    ],
)
def test_a_permanent_error_is_not_retried(server, status, kind, remedy):
    server.fault_of = lambda asked: status
    with pytest.raises(kind, match="1 attempt") as caught:
        run(lambda store: store.read(server.url("a.bin"), 0, 10))
    assert remedy in str(caught.value)
    assert caught.value.status in (status, None)
    assert len(server.ranges()) == 1


@pytest.mark.parametrize("start", [0, 100])
@pytest.mark.parametrize("fault", ["whole", "endless", "elsewhere", "longer"])
def test_no_more_is_read_than_a_range_has_whatever_a_server_sends(server, fault, start):
    server.fault_of = lambda asked: fault
    tracemalloc.start()
    why = "may have been replaced" if fault == "longer" else "the server ignores ranges"
    with pytest.raises(ServerFailed, match=why):
        run(lambda store: store.read(server.url("a.bin"), start, start + 10))
    with pytest.raises(UrlUnreadable, match=r"index it again|the server ignores ranges"):
        read_url_range(FileRange(server.url("a.bin"), start, 10), {})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20
    assert len(server.ranges()) == (4 if fault == "longer" else 2)  # else it is of no use


def test_a_whole_file_that_is_longer_than_it_may_be_is_not_read(server):
    with pytest.raises(ServerFailed, match="more than 1000 bytes"):
        run(lambda store: store.whole(server.url("a.bin"), 1000))
    found, _ = run(lambda store: store.whole(server.url("a.bin"), len(DATA)))
    assert found == DATA


def test_a_refused_connection_is_a_server_that_failed(server):
    server.port = 9
    with pytest.raises(ServerFailed, match="see that the server answers"):
        run(lambda store: store.read(server.url("a.bin"), 0, 10), retries=1)


def test_a_late_request_is_sent_a_second_time_and_the_first_answer_counts(server):
    async def work(store):
        store._hedging = Hedging(share=1.0)  # else what is late by chance uses up its share
        for _ in range(30):
            await store.read(server.url("a.bin"), 0, 10)
        found = []
        while store.counts.hedges_won == 0:  # on a busy machine, the second one may come first
            server.faults.append("hang")  # the next request; its second one is answered
            found.append(await store.read(server.url("a.bin"), 10, 30))
        return found

    found, counts = run(work, hedge=True, retries=0)
    assert found == [DATA[10:30]] * len(found)
    assert counts.requests == 30 + len(found) + counts.hedged


def test_a_hedged_request_that_fails_leaves_the_first_one_its_chance(server):
    async def work(store):
        store._hedging = Hedging(share=1.0)  # else what is late by chance uses up its share
        for _ in range(30):
            await store.read(server.url("a.bin"), 0, 10)
        return await store.read(server.url("a.bin"), 10, 30)

    faults = iter([0.3, 404])  # not of the thirty, some of which may be sent again and be late
    server.fault_of = lambda asked: next(faults) if asked.start == 10 else None
    data, counts = run(work, hedge=True, retries=0)
    assert data == DATA[10:30]
    assert counts.hedged >= 1


def test_local_files_and_memory_are_read_by_the_same_words(tmp_path):
    import fsspec

    (tmp_path / "a.bin").write_bytes(DATA)
    fsspec.filesystem("memory").pipe_file("/store/a.bin", DATA)
    for url in (f"file://{tmp_path}/a.bin", "memory://store/a.bin"):
        found, _ = run(lambda store, url=url: store.read(url, 7, 99))
        assert found == DATA[7:99]
        version, _ = run(lambda store, url=url: store.version(url))
        assert version.nbytes == len(DATA) and version.tag


def test_another_file_of_the_name_has_another_version(server):
    before, _ = run(lambda store: store.version(server.url("a.bin")))
    server.files["a.bin"] = DATA[::-1]
    after, _ = run(lambda store: store.version(server.url("a.bin")))
    assert before.nbytes == after.nbytes and before.tag != after.tag


def test_another_file_of_a_hugging_face_repository_has_another_version(server):
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import HfFileSystem

    repository = "api/datasets/owner/name"
    server.files[repository] = b'{"id": "owner/name"}'
    tree = f"{repository}/tree/main/shards?recursive=false&expand=false"
    tags = []
    for blob in "12":
        entry = {"type": "file", "path": "shards/a.tar", "size": 99, "oid": blob * 40}
        server.files[tree] = json.dumps([entry]).encode()
        HfFileSystem.clear_instance_cache()
        where = {"endpoint": server.url("")[:-1], "token": False}
        version, _ = run(
            lambda store: store.version("hf://datasets/owner/name/shards/a.tar"),
            storage_options=where,
        )
        assert version.nbytes == 99
        tags.append(version.tag)
    assert 0 != tags[0] != tags[1] != 0
