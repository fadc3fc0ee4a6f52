"""Memory without names: whom it belongs to, and that nobody can pull it from under another."""

import fcntl
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fusionloader import _native
from fusionloader.cache.tiers.cache_memory import CacheControl
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.cache.tiers.file_store import FileStore
from fusionloader.cache.tiers.ledger import Ledger
from fusionloader.system.shm import objects
from fusionloader.system.shm.slots import Arena

NOBODY = 65534


@pytest.fixture
def object_fd():
    fd = objects.create(8192, "test")
    yield fd
    os.close(fd)


def test_it_has_no_name_and_is_the_owner_s_alone(object_fd):
    before = os.listdir("/dev/shm")
    fd = objects.create(4096, "named")
    assert (
        os.readlink(f"/proc/self/fd/{fd}") == f"/memfd:fusionloader-{os.getpid()}-named (deleted)"
    )
    assert os.fstat(fd).st_mode & 0o777 == 0o600 and not os.get_inheritable(fd)
    mine = [name for name in set(os.listdir("/dev/shm")) - set(before) if str(os.getpid()) in name]
    assert not mine
    os.close(fd)


OPEN = """
import os, sys
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
try:
    os.open(sys.argv[1], os.O_RDWR)
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_open_it(object_fd):
    path = f"/proc/{os.getpid()}/fd/{object_fd}"
    command = [sys.executable, "-c", OPEN, path, str(NOBODY)]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == "refused"


def test_nobody_can_shrink_it_or_take_the_seal_off(object_fd):
    for size in (0, 4096, 8191, 8193):
        with pytest.raises(PermissionError):
            os.ftruncate(object_fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(object_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert os.fstat(object_fd).st_size == 8192


def test_slots_grow_and_never_shrink():
    arena = Arena()
    size = os.fstat(arena.fd).st_size
    objects.reserve(arena.fd, size, 3 * size)
    assert os.fstat(arena.fd).st_size == 4 * size
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, size)
    arena.close()


LIMITED = """
import resource
from fusionloader.system.shm import objects
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
for attempt in (lambda: objects.create(1 << 21),
                lambda: objects.reserve(objects.create(1, grows=True), 0, 1 << 21)):
    try:
        attempt()
    except objects.SharedMemoryExhausted as error:
        print(error)
"""


def test_a_limit_of_the_sizes_of_files_is_named():
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert len(said) == 2, done.stderr
    for line in said:
        assert "needs 2.0 MiB" in line and "1.0 MiB are free" in line
        assert "RLIMIT_FSIZE" in line and "ulimit -f unlimited" in line


COLLECTED = """
import gc
from fusionloader.system.shm import objects

class Collects:
    def __del__(self):
        gc.collect()

def check():
    held = Collects()
    objects.check_room(1 << 60, "batches")

for _ in range(10):
    try:
        check()
    except MemoryError as error:
        assert type(error) is objects.SharedMemoryExhausted and isinstance(error, RuntimeError)
print("all")
"""


def test_a_garbage_collection_while_the_error_is_freed_does_not_crash():
    done = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr


def copy_of(fd, change=lambda data: data, sealed=True):
    """Another object with the same contents, changed."""
    data = change(bytearray(os.pread(fd, os.fstat(fd).st_size, 0)))
    copy = objects.create(len(data)) if sealed else os.memfd_create("unsealed")
    os.ftruncate(copy, len(data)) if not sealed else None
    os.pwrite(copy, bytes(data), 0)
    return copy


def cut(data):
    return data[: len(data) - 4096]


def of_another_version(data):
    """Magic numbers are words that begin with FL; the last character is the version."""
    at = data.find(b"FL")
    data[at + 7] ^= 1
    return data


def attach_control(fd):
    arena = Arena()
    try:
        _native.WorkerQueue(fd, arena.fd, 0)
    finally:
        arena.close()


def made_control():
    fd = objects.create(_native.ManagerQueue.control_bytes(2, 4))
    arena = Arena()
    _native.ManagerQueue(fd, arena.fd, 2, 4)
    arena.close()
    return fd, attach_control


def made_table():
    table = DatasetTable.of_files(["/a" * 4000], [1])
    return os.dup(table.fd), lambda fd: DatasetTable.of_descriptor(fd, table.nbytes)


def made_store():
    store = FileStore(10, 1 << 16)
    return os.dup(store.fd), lambda fd: _native.FileStoreView(fd, store.nbytes)


def made_ledger():
    ledger = Ledger.create(1 << 20)
    return os.dup(ledger.fd), lambda fd: Ledger(os.dup(fd))


def made_page():
    control = CacheControl.create(10, 1 << 20)
    return os.dup(control.fd), lambda fd: _native.OpenedStores(control_fd=fd)


KINDS = [made_control, made_table, made_store, made_ledger, made_page]


@pytest.mark.parametrize("made", KINDS, ids=lambda made: made.__name__.removeprefix("made_"))
def test_what_is_attached_is_whole_sealed_and_of_this_version(made):
    fd, attach = made()
    attach(copy_of(fd))  # which is as good
    for wrong, said in (
        (copy_of(fd, cut), "another version"),
        (copy_of(fd, of_another_version), "another version"),
        (copy_of(fd, sealed=False), "not sealed"),
    ):
        with pytest.raises(_native.SharedMemoryMismatch, match=said):
            attach(wrong)
        os.close(wrong)
    os.close(fd)


def unnamed_file(folder, mode=0o600, owner=None):
    path = Path(folder) / f"test-{secrets.token_hex(8)}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    os.unlink(path)
    os.ftruncate(fd, 4096)
    os.fchmod(fd, mode)
    os.fchown(fd, owner, owner) if owner is not None else None
    return fd


def test_of_files_those_of_dev_shm_without_a_name_are_taken(tmp_path):
    _native.SharedMapping(unnamed_file("/dev/shm"), 0, 4096)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as named:
        named.truncate(4096)
        wrong = [named.fileno(), unnamed_file(tmp_path), unnamed_file("/dev/shm", 0o644)]
        if os.geteuid() == 0:
            wrong.append(unnamed_file("/dev/shm", owner=NOBODY))
        for fd in wrong:
            with pytest.raises(_native.SharedMemoryMismatch, match="not sealed"):
                _native.SharedMapping(fd, 0, 4096)


def test_a_mapping_that_would_raise_sigbus_is_refused(object_fd):
    _native.SharedMapping(object_fd, 4096, 4096)
    for offset, nbytes in ((4096, 4097), (8192, 1), (0, 1 << 40)):
        with pytest.raises(_native.SharedMemoryMismatch, match="of which .* are needed"):
            _native.SharedMapping(object_fd, offset, nbytes)


def test_what_the_system_refuses_is_an_oserror(object_fd):
    with pytest.raises(OSError, match="mmap"):
        _native.SharedMapping(object_fd, 1, 4096)  # not the beginning of a page
