"""Remote workers that sleep instead of computing: the loader's side, without work on any core."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe

from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import Ready, Rows, Setup, WorkRequest
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.listener import Answer, Listener, Service
from fusionloader.system.transport.messages import Message, Outgoing, refusal


@contextmanager
def sleeping_workers(
    token: bytes, count: int, cores: int = 1, seconds: float = 0.0, host: str = "127.0.0.3"
) -> Iterator[list[Address]]:
    """Starts workers, in one process; yields their addresses.

    Each answers one request per core at a time, with rows of zeros after ``seconds``.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, token, count, cores, seconds, host))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def _serve(pipe: Pipe, token: bytes, count: int, cores: int, seconds: float, host: str) -> None:
    identity = Identity.of(token)
    service = Service(lambda: _answers(cores, seconds), protocol.MOST_BODY)
    listeners = [
        Listener(Address(host, 0), identity, {protocol.SERVICE: service}) for _ in range(count)
    ]
    pipe.send([listener.address for listener in listeners])
    time.sleep(3600)


def _answers(cores: int, seconds: float) -> Answer:
    row_bytes = 0
    rows = memoryview(b"")

    def answer(message: Message) -> Outgoing:
        nonlocal row_bytes, rows
        if message.kind == protocol.SETUP:
            row_bytes = Setup.decode(message.head).row_bytes
            return Outgoing(protocol.READY, Ready("sleeps", cores).encode())
        if message.kind != protocol.PREPARE:
            return refusal(f"does not know messages of kind {message.kind}")
        start = time.monotonic_ns()
        request = WorkRequest.decode(message.head, len(message.body))
        nbytes = row_bytes * len(request.samples)
        if nbytes > len(rows):
            rows = memoryview(bytes(nbytes))
        if seconds:
            time.sleep(seconds)
        answered = Rows(request.number, time.monotonic_ns() - start, 0)
        return Outgoing(protocol.ROWS, answered.encode(), [rows[:nbytes]])

    return answer
