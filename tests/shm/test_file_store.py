"""The store of what workers derive from files: filled once, by the first worker."""

import multiprocessing
import os
import subprocess
import sys

import pytest
from support.mounts import IN_PID_NAMESPACE
from support.other_users import as_root

from fusionloader import _native
from fusionloader.cache.tiers.file_store import FileStore

TABLE = 128 + 64 * 10  # of ten files


def opened(store):
    return _native.FileStoreView(store.fd, store.nbytes)


def found(store, item, nbytes, mtime_ns):
    kept = store.find(item, nbytes, mtime_ns)
    return kept and (kept.data, kept.width, kept.height)


def test_what_was_put_in_is_found_by_everybody():
    store = FileStore(10, 4096)
    first, second = opened(store), opened(store)
    assert first.put(3, 100, 7, 5, 4, b"pixels")
    assert found(second, 3, 100, 7) == (b"pixels", 5, 4)
    assert second.find(3, 101, 7) is None and second.find(3, 100, 8) is None
    assert second.find(2, 100, 7) is None and second.find(10, 100, 7) is None
    assert (store.kept, store.used) == (1, TABLE + 64)


def test_what_is_kept_never_changes():
    store = opened(FileStore(10, 4096))
    assert store.put(3, 100, 7, 5, 4, b"pixels")
    assert not store.lacks(3, 1)
    assert not store.put(3, 200, 8, 1, 1, b"others")
    assert found(store, 3, 100, 7) == (b"pixels", 5, 4)


@pytest.mark.parametrize("room", [0, 63, 64, 200])
def test_the_budget_holds_to_the_byte(room):
    store = FileStore(10, TABLE + room)
    here = opened(store)
    for item in range(10):
        fits = (item + 1) * 64 <= room
        assert here.lacks(item, 64) == fits
        assert here.put(item, 1, 1, 1, 1, bytes([item]) * 64) == fits
        assert (here.find(item, 1, 1) is not None) == fits
        assert store.used <= store.nbytes == os.fstat(store.fd).st_size
    assert not here.lacks(10, 0) and not here.put(10, 1, 1, 1, 1, b"")


def test_it_stops_before_others_lack_memory():
    store = FileStore(10, 4096, spared=1 << 62)
    here = opened(store)
    assert here.lacks(0, 6) and not here.put(0, 1, 1, 1, 1, b"pixels")
    assert store.closed and not here.lacks(1, 6)
    assert (store.kept, here.find(0, 1, 1)) == (0, None)


def test_a_budget_below_the_table_is_refused():
    with pytest.raises(ValueError, match="10 files need a table of 768 bytes, there are 767"):
        FileStore(10, TABLE - 1)


BEGIN = """
import sys
from fusionloader import _native
fd, nbytes = map(int, sys.argv[1:])
assert _native.FileStoreView(fd, nbytes).begin(1, 8, 1)
"""


def test_a_file_left_by_a_killed_process_is_filled_by_the_next():
    store = FileStore(10, 4096)
    here = opened(store)
    command = [sys.executable, "-c", BEGIN, str(store.fd), str(store.nbytes)]
    subprocess.run(command, pass_fds=[store.fd], check=True)
    assert here.begin(0, 8, 1)  # by this process, which is alive
    used = store.used
    assert not here.lacks(0, 8) and not here.put(0, 1, 1, 1, 1, b"other")
    assert here.lacks(1, 8) and here.put(1, 1, 1, 1, 1, b"dead")
    assert here.find(0, 1, 1) is None and found(here, 1, 1, 1) == (b"dead", 1, 1)
    assert store.used == used  # the room that was taken for it is used
    here.abandon(0)
    assert here.put(0, 1, 1, 1, 1, b"other") and store.used == used


IN_ANOTHER_NAMESPACE = """
import os, sys
from fusionloader import _native
fd, nbytes = map(int, sys.argv[1:])
store = _native.FileStoreView(fd, nbytes)
assert os.getpid() < 10 and not store.lacks(0, 8) and not store.begin(0, 8, 1)
assert store.begin(1, 8, 1) and store.put(2, 1, 1, 1, 1, b"there")
"""


@as_root
def test_a_file_that_a_process_of_another_container_fills_is_left_to_it():
    store = FileStore(10, 4096)
    here = opened(store)
    assert here.begin(0, 8, 1)
    script = [sys.executable, "-c", IN_ANOTHER_NAMESPACE, str(store.fd), str(store.nbytes)]
    subprocess.run([*IN_PID_NAMESPACE, *script], pass_fds=[store.fd], check=True)
    assert not here.lacks(1, 8) and not here.begin(1, 8, 1)
    assert found(here, 2, 1, 1) == (b"there", 1, 1)


def fill(store, start):
    here = opened(store)
    start.wait()
    for item in range(400):
        here.put(item, 1, 1, item, os.getpid(), (b"%07d" % os.getpid()) * (1 + item % 50))


def test_processes_that_fill_it_at_once_keep_every_file_once():
    store = FileStore(400, 1 << 20)
    context = multiprocessing.get_context("fork")
    start = context.Event()
    fillers = [context.Process(target=fill, args=(store, start)) for _ in range(4)]
    for filler in fillers:
        filler.start()
    start.set()
    for filler in fillers:
        filler.join()
    here, used = opened(store), store.used
    kept = [found(here, item, 1, 1) for item in range(400)]
    for item, (data, width, pid) in enumerate(kept):
        assert width == item and data == (b"%07d" % pid) * (1 + item % 50)
    sizes = [-(-7 * (1 + item % 50) // 64) * 64 for item in range(400)]
    assert used == 128 + 64 * 400 + sum(sizes) and store.kept == 400
