"""One memory for the ranks, loaders and jobs of a machine."""

import contextlib
import itertools
import os
import resource

import pytest
from support.cache_jobs import (
    attach,
    detach,
    fork_a_child_that_detaches,
    fork_a_worker,
    holder_pid,
    inodes,
    processes_with,
    read,
    request,
    users,
    write,
)
from support.waiting import gone, left_behind, wait_until

from fusionloader.cache import client
from fusionloader.cache.client import HolderUnavailable
from fusionloader.cache.tiers.cache_memory import DatasetMemory


def test_four_ranks_have_one_memory(cache_job):
    ranks = [cache_job() for _ in range(4)]
    for rank in ranks:
        rank.begin(attach, request())
    found = [rank.result() for rank in ranks]
    assert found[0].keys() == {"ledger", "control_page", "index", "encoded"}
    assert found[1:] == found[:1] * 3
    ranks[3].do(write, "encoded", 77, b"filled once")
    assert [rank.do(read, "encoded", 77, 11) for rank in ranks] == [b"filled once"] * 4


def test_a_loader_learns_what_it_has(runtime_folder, tmp_path):
    asked = request(path=str(tmp_path), memory=1 << 22, disk=1 << 23)
    with contextlib.closing(client.attach(asked)) as attached:
        assert not attached.served and attached.path == str(tmp_path)
        assert (attached.memory, attached.disk) == (1 << 22, 1 << 23)
        assert attached.fds.keys() == {"ledger", "control_page", *attached.nbytes}
        for name, nbytes in attached.nbytes.items():
            assert os.fstat(attached.fds[name]).st_size == nbytes
        assert not any(os.get_inheritable(fd) for fd in attached.fds.values())


def memory_files():
    """The shared memory that this process has opened, once for each descriptor."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of the listing
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(path for path in found if "memfd:fusionloader" in path)


def test_memory_that_cannot_be_opened_for_too_many_files_leaves_none_open(runtime_folder):
    """After each number of them: the fifth would be the last one."""
    with contextlib.closing(client.attach(request())) as attached:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = memory_files()
        opened = {int(fd) for fd in os.listdir("/proc/self/fd")}
        free = (fd for fd in itertools.count() if fd not in opened)
        for limit in itertools.islice(free, len(attached.fds)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                with pytest.raises(OSError, match="Too many open files"):
                    DatasetMemory.of(attached.fds, attached.nbytes)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert memory_files() == before
        DatasetMemory.of(attached.fds, attached.nbytes).close()


def test_without_a_reference_to_it_the_use_has_ended(runtime_folder):
    attached = client.attach(request())
    memory = inodes(attached.fds)
    del attached
    wait_until(lambda: processes_with(memory["encoded"]) == set())


def test_with_the_last_user_the_holder_ends_and_the_memory_is_freed(cache_job):
    first, second = cache_job(), cache_job()
    memory = first.do(attach, request())
    second.do(attach, request())
    holder = holder_pid()
    first.do(detach)
    wait_until(lambda: users() == [second.pid])
    assert processes_with(memory["index"]) == {second.pid, holder}
    second.do(detach)
    wait_until(lambda: gone(holder), "the holder does not end")
    assert [processes_with(inode) for inode in memory.values()] == [set()] * 4
    assert holder_pid() is None and not left_behind(holder, first.pid, second.pid)


def test_no_memory_has_a_name(cache_job):
    before = set(os.listdir("/dev/shm"))
    first = cache_job()
    first.do(attach, request())
    mine = f"fusionloader-{first.pid}-", f"fusionloader-{holder_pid()}-"
    assert not [n for n in set(os.listdir("/dev/shm")) - before if n.startswith(mine)]
    assert left_behind(holder_pid())  # which are names only of what it still has


def test_the_loaders_of_one_cache_share_its_budget(cache_job):
    first = cache_job()
    train = first.do(attach, request())
    val = first.do(attach, request(fingerprint="7a1" * 16, files=50))
    assert train["ledger"] == val["ledger"] and train["encoded"] != val["encoded"]
    other = cache_job()
    with pytest.raises(HolderUnavailable, match="its memory cannot be made: .*there are 16740352"):
        other.do(attach, request(fingerprint="b16" * 16, files=1 << 20))


def test_another_job_joins_the_memory_of_the_same_files_under_its_own_token(cache_job):
    first, second = cache_job(), cache_job()
    memory = first.do(attach, request())
    assert second.do(attach, request(token="of another job", memory=1 << 30)) == memory
    first.kill()
    wait_until(lambda: users() == [second.pid])
    assert cache_job().do(attach, request(token="of a third")) == memory


def test_files_on_another_disk_have_another_memory(cache_job, tmp_path):
    first, second = cache_job(), cache_job()
    memory = first.do(attach, request())
    other = second.do(attach, request(token="other", path=str(tmp_path), disk=1 << 30))
    assert set(memory.values()).isdisjoint(other.values())


def test_a_ledger_keeps_the_memory_of_a_loader_that_has_ended(cache_job):
    first = cache_job()
    first.do(attach, request())
    val = first.do(attach, request(fingerprint="7a1" * 16))
    first.do(detach)
    wait_until(lambda: _users_of("7a1" * 16) == [])
    assert first.do(attach, request(fingerprint="7a1" * 16)) == val


def _users_of(fingerprint):
    ledgers = client.ask_holder({"do": "list"})["ledgers"]
    datasets = {d["fingerprint"]: d["users"] for held in ledgers for d in held["datasets"]}
    return datasets[fingerprint]


def test_the_same_fingerprint_of_another_number_of_files_is_refused(cache_job):
    cache_job().do(attach, request())
    with pytest.raises(HolderUnavailable, match=r"100 files\) is held, and a dataset of 99 files"):
        cache_job().do(attach, request(files=99))


def test_a_forked_child_does_not_end_its_parents_use(cache_job):
    first = cache_job()
    memory = first.do(attach, request())
    assert first.do(fork_a_child_that_detaches) == 0
    assert first.do(read, "index", 1 << 20, 1) == b"\0"
    assert cache_job().do(attach, request()) == memory and first.pid in users()


def test_a_loader_that_ends_before_its_forked_workers_ends_its_use(cache_job):
    first = cache_job()
    first.do(attach, request())
    holder = holder_pid()
    worker = first.do(fork_a_worker)
    first.do(detach)
    wait_until(lambda: gone(holder), "the holder does not end")
    os.kill(worker, 9)


def test_threads_of_a_process_may_attach_at_once(cache_job):
    assert len(set(cache_job().do(_attach_in_threads, 8))) == 1


def _attach_in_threads(count):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as threads:
        attached = list(threads.map(client.attach, [request()] * count))
    memory = [inodes(each.fds)["encoded"] for each in attached]
    for each in attached:
        each.close()
        each.close()  # a second call does nothing
    return memory
