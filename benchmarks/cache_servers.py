"""What a sample costs that another server's memory holds: by our transport, pyzmq, and bare TCP.

Batches of samples of one size are asked for over the loopback device, at random. The CPU time of
both processes counts. `fusionloader` does all that a worker does: owners, stamps, parsing.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.study import parser_of, publish
from fusionloader.cache.range_reading import FileRange, FileStamp
from fusionloader.cache.servers.fetcher import Fetcher
from fusionloader.cache.servers.owners import Owners, Servers
from fusionloader.cache.servers.server import CacheServer
from fusionloader.cli.progress import Progress
from fusionloader.system.transport import connection
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity

NBYTES = 79_000  # of a JPEG of 500 pixels
ITEMS = 1500
BATCHES = (4, 16, 64)
_SAMPLES = 1024  # of a measurement
HERE, THERE = "127.0.0.2", "127.0.0.3"
FINGERPRINT = bytes(32)

Get = Callable[[Sequence[int]], object]
"""Gets samples; what it returns is touched no more."""


class Memory:
    """The encoded bytes that a server holds: ``ITEMS`` samples, each ``NBYTES`` long."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(os.urandom(NBYTES)) * ITEMS)

    def get(self, item: int, stamp: FileStamp | None = None) -> memoryview:
        """Returns a sample."""
        start = item % ITEMS * NBYTES
        return self._memory[start : start + NBYTES]

    def put(self, item: int, stamp: FileStamp, data: memoryview) -> bool:
        """Keeps nothing more."""
        return False

    def lacks(self, item: int, nbytes: int) -> bool:
        """Has no room."""
        return False


# ---- bare TCP: what the kernel costs -----------------------------------------------------------


def serve_tcp(pipe: Pipe, memory: Memory) -> None:
    listener = socket.create_server((THERE, 0))
    pipe.send(listener.getsockname()[1])
    end, _ = listener.accept()
    while head := end.recv(4, socket.MSG_WAITALL):
        request = end.recv(4 * struct.unpack("i", head)[0], socket.MSG_WAITALL)
        for (item,) in struct.iter_unpack("i", request):
            end.sendall(memory.get(item))


def tcp_client(port: int, folder: Path) -> Get:
    end = socket.create_connection((THERE, port))
    buffer = memoryview(bytearray(NBYTES * max(BATCHES)))

    def get(items: Sequence[int]) -> None:
        end.sendall(struct.pack(f"{len(items) + 1}i", len(items), *items))
        end.recv_into(buffer, NBYTES * len(items), socket.MSG_WAITALL)

    return get


# ---- pyzmq -------------------------------------------------------------------------------------


def zmq_keys() -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    import zmq

    return zmq.curve_keypair(), zmq.curve_keypair()


def serve_zmq(pipe: Pipe, memory: Memory, keys: Any, copy: bool) -> None:
    import zmq

    router = zmq.Context().socket(zmq.ROUTER)
    if keys is not None:
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = keys[0]
    pipe.send(router.bind_to_random_port(f"tcp://{THERE}"))
    while True:
        client, request = router.recv_multipart()
        found = [memory.get(item) for (item,) in struct.iter_unpack("i", request)]
        router.send_multipart([client, *found], copy=copy)


def zmq_client(port: int, folder: Path, keys: Any) -> Get:
    import zmq

    dealer = zmq.Context().socket(zmq.DEALER)
    if keys is not None:
        dealer.curve_serverkey = keys[0][0]
        dealer.curve_publickey, dealer.curve_secretkey = keys[1]
    dealer.connect(f"tcp://{THERE}:{port}")

    def get(items: Sequence[int]) -> Any:
        dealer.send(struct.pack(f"{len(items)}i", *items))
        return dealer.recv_multipart(copy=False)

    return get


# ---- ours --------------------------------------------------------------------------------------


def serve_ours(pipe: Pipe, memory: Memory, encrypt: bool) -> None:
    if encrypt:
        connection.is_loopback = lambda _: False
    server = CacheServer(Address(THERE, 0), Identity.of(b"token"), lambda _: memory)
    pipe.send(server.address.port)
    time.sleep(3600)


def our_client(port: int, folder: Path, encrypt: bool) -> Get:
    if encrypt:
        connection.is_loopback = lambda _: False
    path = folder / "sample"
    path.write_bytes(bytes(NBYTES))
    here, there = f"{HERE}:1", str(Address(THERE, port))
    owners = Owners((here, there), FINGERPRINT)
    theirs = [item for item in range(4 * ITEMS) if owners.owner(item) == there][:ITEMS]
    fetcher = Fetcher(
        Servers((here, there), here),
        FINGERPRINT,
        Identity.of(b"token"),
        lambda _: FileRange(str(path), 0, 0),
    )

    def get(items: Sequence[int]) -> None:
        brought = fetcher.bring([theirs[item] for item in items])
        if not all(file.is_hit for file in brought):
            raise RuntimeError("samples are missing")

    return get


# ---- measuring ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contender:
    """A transport: what each of the two processes runs."""

    serve: Callable[[Pipe, Memory], None]
    client: Callable[[int, Path], Get]


def contenders() -> dict[str, Contender]:
    """Returns what is compared; pyzmq where it is installed."""
    found = {
        "TCP, nothing else": Contender(serve_tcp, tcp_client),
        "fusionloader": Contender(
            partial(serve_ours, encrypt=False), partial(our_client, encrypt=False)
        ),
        "fusionloader, encrypted": Contender(
            partial(serve_ours, encrypt=True), partial(our_client, encrypt=True)
        ),
    }
    with suppress(ImportError):
        keys = zmq_keys()
        for name, used, copy in (
            ("pyzmq", None, True),
            ("pyzmq, frames not copied", None, False),
            ("pyzmq, CURVE", keys, True),
        ):
            serve = partial(serve_zmq, keys=used, copy=copy)
            found[name] = Contender(serve, partial(zmq_client, keys=used))
    return found


def run_client(pipe: Pipe, contender: Contender, port: int, folder: Path) -> None:
    """Gets ``(batch, batches)`` as told, and says when they are there."""
    get = contender.client(port, folder)
    drawn = random.Random(0)
    while True:
        batch, batches = pipe.recv()
        for _ in range(batches):
            get(drawn.sample(range(ITEMS), batch))
        pipe.send(None)


@contextmanager
def running(contender: Contender, memory: Memory, folder: Path) -> Iterator[tuple[Pipe, list[int]]]:
    """Starts both processes; yields the client's pipe and the ids of client and server."""
    context = multiprocessing.get_context("fork")
    (from_server, to_parent), (pipe, to_main) = context.Pipe(), context.Pipe()
    server = context.Process(target=contender.serve, args=(to_parent, memory))
    server.start()
    arguments = (to_main, contender, from_server.recv(), folder)
    client = context.Process(target=run_client, args=arguments)
    client.start()
    try:
        yield pipe, [client.pid or 0, server.pid or 0]
    finally:
        for process in (client, server):
            process.kill()
            process.join()


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process, from its clock of the kernel (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def costs(pipe: Pipe, pids: list[int], batch: int, samples: int) -> list[float]:
    """Returns microseconds a sample: CPU of client and server, and elapsed."""
    pipe.send((batch, 8))
    pipe.recv()
    before = [*map(cpu_seconds, pids), time.perf_counter()]
    batches = samples // batch
    pipe.send((batch, batches))
    pipe.recv()
    after = [*map(cpu_seconds, pids), time.perf_counter()]
    return [1e6 * (b - a) / (batches * batch) for a, b in zip(before, after, strict=True)]


def main() -> None:
    parser = parser_of(__doc__, rounds=11)
    options = parser.parse_args()
    memory = Memory()
    measured: dict[tuple[str, int], list[list[float]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        ExitStack() as stack,
        Progress("cache servers", options.rounds) as progress,
    ):
        runs = {
            name: stack.enter_context(running(contender, memory, Path(folder)))
            for name, contender in contenders().items()
        }
        for _ in range(options.rounds):
            for name, (pipe, pids) in runs.items():
                for batch in BATCHES:
                    figures = costs(pipe, pids, batch, _SAMPLES)
                    measured.setdefault((name, batch), []).append(figures)
            progress.advance()
    rows = []
    for (name, batch), figures in measured.items():
        middle = [f"{median(each):.0f}" for each in zip(*figures, strict=True)]
        least = [f"{min(each):.0f}" for each in zip(*figures, strict=True)]
        rows.append((name, str(batch), *middle, *least[:2]))
    header = (
        "transport",
        "samples a request",
        "client CPU us/sample",
        "server CPU us/sample",
        "us/sample",
        "least client",
        "least server",
    )
    every = [
        {"transport": name, "batch": batch, "client_server_elapsed_us": figures}
        for (name, batch), figures in measured.items()
    ]
    publish(options, header, rows, nbytes=NBYTES, measured=every)


if __name__ == "__main__":
    main()
