"""Machines that share a cache: processes at loopback addresses, each with memory of its own."""

import contextlib
import multiprocessing
import os
import signal
import threading
from pathlib import Path

from fusionloader.cache.range_reading import FileRange
from fusionloader.cache.servers.fetcher import Fetcher, read_stamp
from fusionloader.cache.servers.owners import Servers
from fusionloader.cache.servers.server import CacheServer
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from support.waiting import PATIENCE, is_stopped, wait_until

FINGERPRINT = bytes(range(32))
TOKEN = b"a token that all machines know"


class DictStore:
    """Encoded bytes of files, up to a number of bytes."""

    def __init__(self, budget=1 << 30):
        self.held = {}
        self.room = budget
        self._lock = threading.Lock()

    def get(self, item, stamp):
        found = self.held.get(item)
        return memoryview(found[1]) if found and found[0] == stamp else None

    def put(self, item, stamp, data):
        with self._lock:
            if not self.lacks(item, data.nbytes):
                return False
            self.held[item] = (stamp, bytes(data))
            self.room -= data.nbytes
            return True

    def lacks(self, item, nbytes):
        return item not in self.held and nbytes <= self.room


class Server:
    """A machine in a process of its own: an empty cache, its server, and one worker."""

    def __init__(self, host, token=TOKEN, fingerprint=FINGERPRINT, port=0, budget=1 << 30):
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, host, port, token, fingerprint, budget)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.address = self._reply()

    def _reply(self):
        assert self._pipe.poll(PATIENCE), "the server's process says nothing"
        return self._pipe.recv()

    def ask(self, question, *arguments):
        """Returns the answer of the function of that name in the process."""
        self._pipe.send((question, *arguments))
        return self._reply()

    def signal(self, number):
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:  # a thread that has not taken it yet may still answer
            wait_until(lambda: is_stopped(self.process.pid))

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def _serve(pipe, host, port, token, fingerprint, budget):
    store = DictStore(budget)
    server = CacheServer(Address(host, port), Identity.of(token), {fingerprint: store}.get)
    here = str(server.address)
    pipe.send(here)

    def epoch(servers, paths, items):
        """What a worker's loop does: its own memory, other servers, storage for its own share."""
        machine = Machine(here, servers, paths)
        found, reads = {}, 0
        for item in items:
            stamp = read_stamp(FileRange(str(paths[item]), 0, 0))
            data = store.get(item, stamp) or machine.epoch([item]).get(item)
            if data is None:
                data = paths[item].read_bytes()
                store.put(item, stamp, memoryview(data))
                reads += 1
            found[item] = bytes(data)
        return found, reads + machine.misses

    answers = {"held": lambda: sorted(store.held), "epoch": epoch}
    with contextlib.suppress(EOFError):
        while True:
            question, *arguments = pipe.recv()
            pipe.send(answers[question](*arguments))


class Machine:
    """A worker of a machine, in this process, and the warnings that it gives."""

    def __init__(self, server, servers, files, token=TOKEN, **options):
        self.warnings, self.hits, self.misses = [], 0, 0
        here = server if isinstance(server, str) else server.address
        addresses = tuple(each if isinstance(each, str) else each.address for each in servers)
        self.fetcher = Fetcher(
            Servers(addresses, here),
            options.pop("fingerprint", FINGERPRINT),
            Identity.of(token),
            lambda item: FileRange(str(files[item]), 0, 0),
            self.warnings.append,
            **{"least": PATIENCE, **options},
        )

    def be_impatient(self):
        """Waits for answers from now on no longer than for those that never come."""
        for peer in self.fetcher._peers.values():
            peer._times.deadline = 0.05

    def epoch(self, items, tiny=4):
        """Brings samples, a tiny-batch at a time; returns their bytes."""
        found = {}
        for start in range(0, len(items), tiny):
            brought = self.fetcher.bring(items[start : start + tiny])
            found |= {file.item: bytes(file.data) for file in brought}
            self.hits += sum(file.is_hit for file in brought)
            self.misses += sum(not file.is_hit for file in brought)
        return found


def files_in(folder: Path, count=24):
    """Files of different sizes, and their bytes."""
    paths = [folder / f"{number}.bin" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * (1000 + 997 * number))
    return paths, [path.read_bytes() for path in paths]
