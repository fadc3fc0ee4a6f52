"""Holders and clients that die, hang, or send what no client sends."""

import contextlib
import multiprocessing.spawn
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cache_jobs import (
    attach,
    connected,
    fork_a_worker,
    holder_pid,
    processes_with,
    read,
    request,
    users,
    write,
)
from support.other_users import as_nobody, as_root
from support.waiting import PATIENCE, gone, wait_until

from fusionloader.cache import client
from fusionloader.cache.client import HolderUnavailable
from fusionloader.cache.holder_socket import HolderSocket
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage

ROOT = Path(__file__).parents[2]


def is_whole(holder):
    """Whether it is the same process still, and answers."""
    return client.ask_holder({"do": "list"}) is not None and holder_pid() == holder


# ---- deaths -------------------------------------------------------------------------------------


def test_a_killed_job_is_no_user_any_more_even_while_its_workers_live(cache_job):
    first = cache_job()
    memory = first.do(attach, request())
    holder, worker = holder_pid(), first.do(fork_a_worker)
    first.kill()
    wait_until(lambda: gone(holder), "the holder does not end")
    assert processes_with(memory["encoded"]) == {worker}  # real workers end with their parent
    os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("sent", [False, True])
def test_a_client_that_dies_in_mid_request_leaves_no_use(cache_job, sent):
    first = cache_job()
    first.do(attach, request())
    holder = holder_pid()
    for _ in range(5):
        cache_job().do(_connect_and_stop, sent)
    wait_until(lambda: users() == [first.pid])
    first.kill()
    wait_until(lambda: gone(holder), "the holder does not end")


def _connect_and_stop(sent):
    connection = connected()
    if sent:
        fields = {"do": "attach", "version": fd_messages.package_version(), **request().fields()}
        fd_messages.send(connection, FdMessage(fields))
    pid = os.fork()  # which dies with the connection as it is
    if pid == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_jobs_go_on_without_their_holder_and_later_ones_start_another(cache_job):
    first, second, third = cache_job(), cache_job(), cache_job()
    memory = first.do(attach, request())
    second.do(attach, request())
    holder = holder_pid()
    os.kill(holder, signal.SIGKILL)
    wait_until(lambda: gone(holder))
    first.do(write, "encoded", 1 << 20, b"still shared")
    assert second.do(read, "encoded", 1 << 20, 12) == b"still shared"
    later = third.do(attach, request())
    assert later["encoded"] != memory["encoded"] and holder_pid() not in (None, holder)
    assert third.do(read, "encoded", 1 << 20, 12) == bytes(12)
    assert users() == [third.pid]


def test_a_holder_that_is_asked_to_end_removes_its_socket_and_jobs_go_on(cache_job, runtime_folder):
    first = cache_job()
    first.do(attach, request())
    holder = holder_pid()
    os.kill(holder, signal.SIGTERM)
    wait_until(lambda: gone(holder))
    assert [path.name for path in runtime_folder.glob("*.sock")] == []
    assert first.do(write, "encoded", 1 << 20, b"goes on") == 7


def test_who_starts_a_second_holder_has_reaped_the_first(cache_job):
    first = cache_job()
    first.do(attach, request())
    holder = holder_pid()
    os.kill(holder, signal.SIGKILL)
    wait_until(lambda: gone(holder))
    first.do(attach, request())
    assert not os.path.exists(f"/proc/{holder}")  # no zombie


PAIRS = """
import os, signal, sys
sys.path.insert(0, "tests")
from support.cache_jobs import Job, attach, holder_pid, request

for _ in range(20):  # each after a holder that was killed, whose socket is there still
    jobs = [Job(), Job()]
    for job in jobs:
        job.begin(attach, request())
    first, second = (job.result() for job in jobs)
    assert first == second, (first, second)
    os.kill(holder_pid(), signal.SIGKILL)
    for job in jobs:
        job.kill()
"""


@pytest.mark.matrix
def test_of_two_that_start_a_holder_at_once_one_is_the_holder_of_both(runtime_folder):
    done = subprocess.run([sys.executable, "-c", PAIRS], cwd=ROOT, timeout=PATIENCE)
    assert done.returncode == 0


def test_a_holder_keeps_nothing_of_the_job_that_started_it(cache_job, runtime_folder):
    first = cache_job()
    first.do(_allow_few_files)
    first.do(attach, request())
    assert os.readlink(f"/proc/{holder_pid()}/fd/2") == str(*runtime_folder.glob("*.log"))
    soft, hard = resource.prlimit(holder_pid(), resource.RLIMIT_NOFILE)
    assert soft == hard


def _allow_few_files():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))


# ---- holders that cannot be had -----------------------------------------------------------------


def test_a_stopped_holder_is_named(cache_job, monkeypatch):
    cache_job().do(attach, request())
    holder = holder_pid()
    os.kill(holder, signal.SIGSTOP)
    monkeypatch.setattr(client, "_PATIENCE_SECONDS", 0.1)
    with pytest.raises(HolderUnavailable, match=f"pid {holder}, does not answer: timed out"):
        client.attach(request())


def test_a_holder_that_has_the_lock_and_never_listens_is_given_up(runtime_folder, monkeypatch):
    claimed = HolderSocket.claim(runtime_folder)
    claimed.listener.close()
    monkeypatch.setattr(client, "_PATIENCE_SECONDS", 0.5)
    with pytest.raises(HolderUnavailable, match="has answered for 0.5 s: none listens, or it ends"):
        client.attach(request())
    claimed.close()


def test_a_folder_that_cannot_be_used_is_named(runtime_folder):
    runtime_folder.mkdir(mode=0o755)
    runtime_folder.chmod(0o755)
    with pytest.raises(HolderUnavailable, match=r"reached: .*open to others \(mode 0755\)"):
        client.attach(request())
    runtime_folder.chmod(0o700)


def test_a_holder_that_fails_to_start_says_how(runtime_folder):
    runtime_folder.mkdir(mode=0o700)
    namespace = os.stat("/proc/self/ns/pid").st_ino
    (runtime_folder / f"cache-{namespace}.lock").symlink_to("elsewhere")
    with pytest.raises(HolderUnavailable, match=r"exited unexpectedly with exit code 1; see"):
        client.attach(request())


def test_an_interpreter_that_is_missing_is_named(runtime_folder, monkeypatch):
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", "/nowhere/python")
    with pytest.raises(HolderUnavailable, match="can be started: .*/nowhere/python"):
        client.attach(request())


def test_another_version_is_refused_with_both_named(cache_job, monkeypatch):
    cache_job().do(attach, request())
    here = fd_messages.package_version()
    monkeypatch.setattr(fd_messages, "package_version", lambda: "0.0.1")
    expected = rf"pid {holder_pid()}\) runs fusionloader {here}, and this process '0.0.1'"
    with pytest.raises(HolderUnavailable, match=expected):
        client.attach(request())


# ---- messages and descriptors --------------------------------------------------------------------


@pytest.mark.parametrize(
    "malformed", [b"{", b"[]\n", b'{"do": "attach"}\n', b"\xff" * 1000, b"[" * 100_000]
)
def test_malformed_messages_do_not_end_it(cache_job, malformed):
    cache_job().do(attach, request())
    holder = holder_pid()
    with connected() as connection:
        connection.send(malformed)
        connection.recv(1 << 16)  # the answer, or the end
    assert is_whole(holder)


def test_descriptors_that_are_sent_to_it_are_closed(cache_job, runtime_folder, tmp_path):
    cache_job().do(attach, request())
    sent = tmp_path / "sent"
    with connected() as connection, sent.open("w") as file:
        fields = {"do": "nonsense"}
        fd_messages.send(connection, FdMessage(fields, b"", (file.fileno(),) * 8))
        assert "refused" in fd_messages.receive(connection).fields
    assert str(sent) not in opened_by(holder_pid())
    assert str(runtime_folder) in opened_by(holder_pid())


def opened_by(pid):
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it may be closed meanwhile
            found.add(os.readlink(fd))
    return found


def test_clients_that_do_not_read_keep_nobody_waiting(cache_job):
    cache_job().do(attach, request())
    holder = holder_pid()
    silent = [connected() for _ in range(20)]
    talking = [connected() for _ in range(20)]
    for connection in talking:
        connection.setblocking(False)
        fields = {"version": fd_messages.package_version(), "do": "list"}
        with pytest.raises(OSError):  # it is full, or the holder has answered once and closed it
            while True:
                fd_messages.send(connection, FdMessage(fields))
    assert is_whole(holder)
    for connection in silent + talking:
        connection.close()


def test_a_holder_without_free_descriptors_refuses_and_recovers(cache_job):
    first = cache_job()
    memory = first.do(attach, request())
    holder = holder_pid()
    _, hard = resource.prlimit(holder, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{holder}/fd"))
    resource.prlimit(holder, resource.RLIMIT_NOFILE, (used + 4, hard))
    waiting = [connected() for _ in range(8)]
    with pytest.raises(HolderUnavailable, match=rf"has all of its {used + 4} open files in use"):
        client.attach(request())
    for connection in waiting:
        connection.close()
    resource.prlimit(holder, resource.RLIMIT_NOFILE, (hard, hard))
    assert cache_job().do(attach, request()) == memory and is_whole(holder)


# ---- other users ---------------------------------------------------------------------------------


@as_root
def test_another_users_process_is_refused(cache_job, runtime_folder, monkeypatch):
    cache_job().do(attach, request())
    holder = holder_pid()
    (socket_path,) = runtime_folder.glob("*.sock")
    runtime_folder.chmod(0o755)  # so that more than the folder keeps it out
    socket_path.chmod(0o777)
    monkeypatch.chdir(runtime_folder)

    def ask():
        with fd_messages.make_socket() as connection:
            connection.connect(socket_path.name)
            answer = fd_messages.receive(connection)
            return 7 if answer.fields == {"refused": "the cache holder belongs to user 0"} else 1

    assert as_nobody(ask) == 7
    runtime_folder.chmod(0o700)
    assert is_whole(holder)


@as_root
def test_another_users_holder_is_refused(runtime_folder, monkeypatch):
    runtime_folder.mkdir()
    runtime_folder.chmod(0o777)
    monkeypatch.chdir(runtime_folder)
    listener = fd_messages.make_socket()
    name = f"cache-{os.stat('/proc/self/ns/pid').st_ino}.sock"

    def listen():
        listener.bind(name)
        listener.listen()
        return 7

    assert as_nobody(listen) == 7
    runtime_folder.chmod(0o700)
    with listener, pytest.raises(HolderUnavailable, match="is another user's process"):
        client.attach(request())
    (runtime_folder / name).unlink()
