"""Processes that use a cache as training jobs do, and what the machine shows of its memory."""

import contextlib
import multiprocessing
import os
import signal
from pathlib import Path

from fusionloader.cache import client, holder_socket
from fusionloader.cache.requests import CacheRequest
from fusionloader.cache.runtime_folder import runtime_folder
from fusionloader.system import fd_messages, local_service
from support.waiting import PATIENCE, gone

_FORK = multiprocessing.get_context("fork")


def request(**changes):
    """A request for some files, whose other settings may be given."""
    values = {
        "token": "a token",
        "memory": 1 << 24,
        "disk": 0,
        "fingerprint": "5eed" * 16,
        "files": 100,
        "samples": 100,
        "tiers": ("index", "encoded"),
        "path": None,
        "name": "/data/imagenet/train",
    }
    return CacheRequest(**{**values, **changes})


class Job:
    """A process that does what it is told, and answers with what came of it."""

    def __init__(self):
        self._connection, theirs = _FORK.Pipe()
        self.process = _FORK.Process(target=_obey, args=(theirs, self._connection), daemon=True)
        self.process.start()
        theirs.close()
        self.pid = self.process.pid

    def begin(self, function, *arguments):
        self._connection.send((function, arguments))

    def result(self):
        assert self._connection.poll(PATIENCE), "the job does not answer"
        value = self._connection.recv()
        if isinstance(value, Exception):
            raise value
        return value

    def do(self, function, *arguments):
        self.begin(function, *arguments)
        return self.result()

    def kill(self):
        self.process.kill()
        self.process.join()  # with a timeout it would wait for what the job has forked, too


def _obey(connection, others):
    others.close()
    with contextlib.suppress(EOFError):
        while True:
            function, arguments = connection.recv()
            try:
                value = function(*arguments)
            except Exception as error:
                value = error
            connection.send(value)


# ---- what jobs are told -------------------------------------------------------------------------

_attached = []


def attach(asked):
    """Attaches; returns which objects it got, by name."""
    _attached.append(client.attach(asked))
    return inodes(_attached[-1].fds)


def detach():
    _attached.pop().close()


def write(name, offset, data):
    return os.pwrite(_attached[-1].fds[name], data, offset)


def read(name, offset, count):
    return os.pread(_attached[-1].fds[name], count, offset)


def fork_a_worker():
    """Forks a process that has copies of all descriptors, and does nothing until it is killed."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid


def fork_a_child_that_detaches():
    pid = os.fork()
    if pid == 0:
        detach()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


# ---- what the machine shows ---------------------------------------------------------------------


def inodes(fds):
    return {name: os.fstat(fd).st_ino for name, fd in fds.items()}


def processes_with(inode):
    """Processes that have this anonymous memory open or mapped."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            opened = [os.stat(fd) for fd in (process / "fd").iterdir() if _is_memory(fd)]
            mapped = [line.split() for line in (process / "maps").read_text().splitlines()]
            if any(stat.st_ino == inode for stat in opened) or any(
                words[4] == str(inode) and "memfd:" in words[-2] + words[-1] for words in mapped
            ):
                found.add(int(process.name))
    return found


def _is_memory(fd):
    return "memfd:" in os.readlink(fd)


def connected():
    """A connection to the holder, ``None`` without one."""
    return holder_socket.connect(runtime_folder(), PATIENCE)


def holder_pid():
    """The pid of the holder that listens, ``None`` without one."""
    connection = connected()
    if connection is None:
        return None
    with connection:
        return fd_messages.peer_pid(connection)


def users():
    """The processes that the holder knows as users."""
    answer = client.ask_holder({"do": "list"}) or {"ledgers": []}
    datasets = [dataset for ledger in answer["ledgers"] for dataset in ledger["datasets"]]
    return sorted({pid for dataset in datasets for pid in dataset["users"]})


def kill_holder():
    pid = holder_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        while not gone(pid):
            for process in local_service._started:
                process.join(0.01)
