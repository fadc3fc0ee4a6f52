"""The process that reads URLs, as workers and the training process see it."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import pathlib
import resource
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from support.faulty_server import serving
from support.limits import limited
from support.streams import brought, reading, table_of
from support.tar_shards import image_shards, jpeg, tar_of
from support.waiting import gone, wait_until

from fusionloader.cache.range_reading import ShardChanged
from fusionloader.data.read_ahead import fetcher as fetching
from fusionloader.data.read_ahead import read_ahead_process
from fusionloader.data.read_ahead.read_ahead_process import ReadAheadProcess
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.data.sources.streams.tar_stream import TarStream
from fusionloader.data.sources.url_errors import ServerFailed, UrlAbsent, UrlDenied, UrlUnreadable
from fusionloader.system.shm.objects import SharedMemoryExhausted

COUNT = 40
PATH = [str(folder) for folder in pathlib.Path(__file__).parents[1:3]]
ALL = {number: jpeg(number) for number in range(COUNT)}


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(image_shards((25, 15))) as state:
        yield state


@pytest.fixture
def images(server):
    found = TarStream(server.url("train-{000..001}.tar"), retries=1)
    server.asked.clear()
    return found


def test_samples_that_were_announced_come_with_few_requests(server, images):
    with reading(images) as (reader, fetcher):
        reader.announce([7, 30, 3, 5, 38, 4])
        assert brought(fetcher, [7, 30, 3]) == {item: ALL[item] for item in (7, 30, 3)}
        assert brought(fetcher, [5, 38, 4]) == {item: ALL[item] for item in (5, 38, 4)}
        stats = reader.stats()
    assert len(server.ranges()) == 2  # one for each shard
    assert (stats.samples, stats.on_demand, stats.failures) == (6, 0, 0)
    assert stats.held_bytes == 0
    assert "6 samples with" in stats.explain()


def test_more_mini_batches_are_announced_than_a_socket_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(image_shards((1000,))) as server:
        images = TarStream(server.url("train-000.tar"))
        with reading(images) as (reader, fetcher):
            reader.begin()
            for item in range(1000):
                reader.announce([item])
            reader.go()
            assert brought(fetcher, range(500)).keys() == set(range(500))
            for _ in range(500):
                reader.published()
            asked = len(server.ranges())
            os.kill(reader.pid, signal.SIGKILL)
            wait_until(lambda: len(server.ranges()) > asked)
            assert brought(fetcher, range(500, 1000)).keys() == set(range(500, 1000))
            assert reader.stats().on_demand == 0


def test_nothing_stays_open_of_a_process_that_cannot_start(images, monkeypatch):
    table = table_of(images)

    def refuse(*_):
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(read_ahead_process, "BareProcess", refuse)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no more processes"):
        ReadAheadProcess(table, ReadSettings())
    assert set(os.listdir("/proc/self/fd")) <= before  # earlier tests' may have been closed


def test_samples_that_were_not_announced_are_read_on_demand(server, images):
    with reading(images) as (reader, fetcher):
        assert brought(fetcher, [7, 8, 30]) == {item: ALL[item] for item in (7, 8, 30)}
        assert fetcher.read(0) == ALL[0]
        assert brought(fetcher, [0]) == {0: ALL[0]}  # again: it was not kept
        assert reader.stats().on_demand == 5


def test_memory_that_could_not_be_opened_is_not_taken_for_that_of_an_earlier_connection(
    server, images, monkeypatch
):
    def refuse(*_):
        raise OSError(errno.EMFILE, "too many open files")

    with reading(images) as (_, fetcher):
        assert brought(fetcher, [30]) == {30: ALL[30]}
        fetcher.close()  # as if the reading process had been replaced
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", refuse)
            assert fetcher.bring([7]) == []
        assert brought(fetcher, [8, 9]) == {8: ALL[8], 9: ALL[9]}


def test_no_more_is_held_than_may_be(server, images):
    budget = 1 << 20
    with reading(images, ahead_bytes=budget, request_bytes=4096) as (reader, fetcher):
        reader.announce(list(range(COUNT)) * 100)
        for item in range(COUNT):
            assert brought(fetcher, [item]) == {item: ALL[item]}
            assert reader.stats().held_bytes <= budget


def test_several_workers_ask_at_once(server, images):
    with reading(images) as (reader, _):
        reader.announce(range(COUNT))

        def work(first):
            fetcher = reader.files.open(-1, lambda item: None)
            found = {}
            for item in range(first, COUNT, 4):
                found.update(brought(fetcher, [item]))
            fetcher.close()
            return found

        with ThreadPoolExecutor(4) as threads:
            shares = list(threads.map(work, range(4)))
    assert {item: data for share in shares for item, data in share.items()} == ALL


def test_a_large_answer_has_room(server):
    """More than the memory that a worker is given at first, which is 1 MiB."""
    samples = [bytes([number]) * 600_000 for number in range(3)]
    images = [(f"{number}.jpg", data) for number, data in enumerate(samples)]
    server.files["large.tar"] = tar_of([*images, *((f"{n}.cls", b"1") for n in range(3))])
    with reading(TarStream(server.url("large.tar"))) as (_, fetcher):
        assert brought(fetcher, [0]) == {0: samples[0]}
        assert brought(fetcher, range(3)) == dict(enumerate(samples))


def test_another_pass_drops_what_was_announced_for_the_last(server, images):
    with reading(images) as (reader, fetcher):
        reader.begin()
        reader.announce(range(COUNT))
        reader.begin()
        reader.announce([1])
        reader.announce([2])
        assert brought(fetcher, [30]) == {30: ALL[30]}  # the process has been told all that
        assert len(server.ranges()) == 1  # no other before it is known what comes
        reader.go()
        assert brought(fetcher, [1, 2]) == {1: ALL[1], 2: ALL[2]}
        assert reader.stats().held_bytes == 0
        assert len(server.ranges()) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("passes", [1, 3])
def test_another_pass_takes_nothing_from_a_worker_that_waits(server, images, passes):
    asked, go_on = threading.Event(), threading.Event()

    def wait(_):
        asked.set()
        go_on.wait(30)

    server.fault_of = wait
    with reading(images) as (reader, fetcher), ThreadPoolExecutor(1) as threads:
        found = threads.submit(brought, fetcher, [3, 30])
        assert asked.wait(30)
        for _ in range(passes):
            reader.begin()
            reader.announce([4])
        go_on.set()
        reader.go()
        assert found.result(30) == {3: ALL[3], 30: ALL[30]}
        assert brought(fetcher, [4]) == {4: ALL[4]}
        assert reader.stats().held_bytes == 0


def test_dropped_samples_free_their_bytes(server, images):
    with reading(images) as (reader, fetcher):
        reader.announce([1, 2, 3])
        assert brought(fetcher, [2]) == {2: ALL[2]}
        reader.forget([1, 2, 3])
        assert brought(fetcher, [9]) == {9: ALL[9]}
        assert reader.stats().held_bytes == 0


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("status", "kind"), [(403, UrlDenied), (404, UrlAbsent), (500, ServerFailed)]
)
def test_the_samples_of_a_failed_range_have_its_error(server, images, status, kind):
    server.fault_of = lambda asked: status if asked.path == "train-001.tar" else None
    with reading(images) as (reader, fetcher):
        reader.announce([3, 30, 31])
        assert brought(fetcher, [3, 30, 31]) == {3: ALL[3]}
        for item in (30, 31):
            with pytest.raises(kind, match=r"train-001\.tar', bytes \d+ to \d+ .*attempt"):
                fetcher.read(item)
        server.fault_of = lambda asked: None
        assert fetcher.read(30) == ALL[30]  # once the server is well again


def test_samples_for_which_there_is_no_memory_have_that_error(images):
    with reading(images) as (reader, fetcher):
        before = resource.prlimit(reader.pid, resource.RLIMIT_FSIZE, (1 << 19, -1))
        assert brought(fetcher, [3]) == {}
        with pytest.raises(SharedMemoryExhausted, match="RLIMIT_FSIZE"):
            fetcher.read(3)
        resource.prlimit(reader.pid, resource.RLIMIT_FSIZE, before)
        assert fetcher.read(3) == ALL[3]


def test_a_shard_that_was_replaced_is_found_out(server, images):
    server.files["train-001.tar"] = server.files["train-001.tar"][::-1]
    with reading(images) as (_, fetcher):
        assert brought(fetcher, [3, 30]) == {3: ALL[3]}
        with pytest.raises(
            ShardChanged, match=r"train-001\.tar' is not the file .* index it again"
        ):
            fetcher.read(30)


def test_a_server_that_hangs_is_given_up_after_its_timeout(server, images):
    server.fault_of = lambda asked: "hang"
    with reading(images, timeout=0.2, retries=1) as (reader, fetcher):
        with pytest.raises(ServerFailed, match=r"2 attempts; TimeoutError"):
            fetcher.read(3)
        assert reader.stats().retries == 1


# ---- deaths ------------------------------------------------------------------------------------


def test_a_reading_process_that_is_killed_is_replaced_and_nothing_is_lost(server, images):
    with reading(images) as (reader, fetcher):
        reader.announce([1, 2, 3, 4])
        assert brought(fetcher, [1]) == {1: ALL[1]}
        first = reader.pid
        os.kill(first, signal.SIGKILL)
        found = brought(fetcher, [2, 3])
        assert found == {2: ALL[2], 3: ALL[3]}
        assert reader.pid != first and reader.stats().restarts == 1
        assert brought(fetcher, [4]) == {4: ALL[4]}
        assert reader.stats().on_demand == 0  # it was told again


def test_a_worker_that_waits_when_the_process_is_killed_asks_the_next_one(server, images):
    server.faults.append("hang")
    with reading(images, timeout=60.0) as (reader, fetcher), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(brought, fetcher, [5])
        wait_until(server.ranges)
        os.kill(reader.pid, signal.SIGKILL)
        assert waiting.result() == {5: ALL[5]}


def test_a_process_that_cannot_be_replaced_at_once_is_replaced_later(images, caplog):
    with reading(images) as (reader, fetcher):
        assert brought(fetcher, [1]) == {1: ALL[1]}
        with limited(resource.RLIMIT_NOFILE, 3):
            os.kill(reader.pid, signal.SIGKILL)
            wait_until(lambda: "no other can be started now" in caplog.text)
        assert brought(fetcher, [2]) == {2: ALL[2]}
        assert reader.stats().restarts == 1


def test_a_reader_that_is_closed_as_its_process_is_replaced_leaves_none(images, monkeypatch):
    """The garbage collector may close it in any thread, also in the one that replaces it."""
    reader, started, begin = ReadAheadProcess(table_of(images), ReadSettings()), [], None

    def closing():
        started.append(begin())
        reader.close()
        return started[0]

    begin = reader._start
    monkeypatch.setattr(reader, "_start", closing)
    os.kill(reader.pid, signal.SIGKILL)
    wait_until(lambda: not reader._watch.is_alive())
    assert not started[0][0].is_alive()


def connections(reader):
    """The number of workers that the process has accepted, and its listener."""
    found = psutil.Process(reader.pid).net_connections("unix")
    return sum(reader.files.address in each.laddr for each in found)


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["a connection", "its memory"])
def test_a_process_that_may_open_nothing_for_a_worker_is_replaced(images, what):
    with reading(images) as (reader, fetcher):
        reader.announce([1])
        reader.go()
        wait_until(lambda: reader.stats().held_bytes)
        if what == "its memory":
            fetcher._connected()
            wait_until(lambda: connections(reader) == 2)
        resource.prlimit(reader.pid, resource.RLIMIT_NOFILE, (3, 3))
        assert fetcher.read(1) == ALL[1]
        assert reader.stats().restarts == 1


def test_a_worker_that_died_disturbs_no_other(server, images):
    server.faults.append(0.3)
    with reading(images) as (reader, fetcher):
        gone_worker = reader.files.open(-1, lambda item: None)
        from fusionloader.data.read_ahead import protocol
        from fusionloader.system import fd_messages

        connection = gone_worker._connected()
        fd_messages.send(connection, protocol.items_message("take", [5, 6]))
        wait_until(server.ranges)
        gone_worker.close()
        assert brought(fetcher, [5, 6]) == {5: ALL[5], 6: ALL[6]}


@contextlib.contextmanager
def fork():
    """A child that has all descriptors of this process, as forked workers do."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    yield
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("others", [contextlib.nullcontext, fork])
@pytest.mark.few(1)
def test_a_process_that_dies_whenever_it_starts_is_given_up(
    server, images, monkeypatch, caplog, others
):
    monkeypatch.setattr(fetching, "_PATIENCE_SECONDS", 5.0)
    with reading(images) as (reader, fetcher), others():
        seen = set()
        while not reader._ended.is_set():
            if reader.pid not in seen:
                seen.add(reader.pid)
                os.kill(reader.pid, signal.SIGKILL)
        assert len(seen) == 3
        with pytest.raises(UrlUnreadable, match="has not answered for"):
            fetcher.read(3)
    assert "three times before it read anything" in caplog.text


def error_in_child(action):
    """Returns what an action raises in a forked process, which has no thread beside it."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writes, 0)  # the action may close all files but the first ones
            action()
        except BaseException as error:
            os.write(0, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.few(1)
@pytest.mark.parametrize("spare", range(3), ids=["no connection", "no memory", "no map"])
def test_a_worker_that_may_open_no_more_files_says_so_at_once(server, images, spare):
    def read_with_few():
        # A worker is a child of the training process that made the fetcher.
        own = fetching.StreamFetcher(fetcher._address, fetcher._range_of)
        free = os.dup(0)
        os.close(free)
        os.closerange(free, 1 << 10)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, free + spare))
        own.read(3)

    with reading(images) as (_, fetcher):
        text = error_in_child(read_with_few)
    assert text.startswith("UrlUnreadable: 'http") and "cannot be read: [Errno 24] Too many" in text


def test_nothing_is_left_behind(server, images):
    before = len(os.listdir("/proc/self/fd"))
    with reading(images) as (reader, fetcher):
        reader.announce(range(COUNT))
        assert brought(fetcher, [0])
        pid = reader.pid
    assert gone(pid)
    del reader, fetcher
    # The table's is there until it is collected.
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 1, "descriptors are open")
