"""A borrower in a process of its own that does what the test says, and tells what came of it."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

from fusionloader._native import cuda
from fusionloader.system.gpu_memory import (
    Borrower,
    LedgerHandle,
    Lender,
    Mapping,
    answer_probe,
    return_block,
)
from support.fake_cuda import FakeCuda
from support.waiting import PATIENCE, wait_until

MIB = 1 << 20


class Commands:
    """What the test can ask for; runs in the borrower's process."""

    def __init__(self, ledger_handle: LedgerHandle, fake: FakeCuda) -> None:
        self.borrower = Borrower(ledger_handle)
        self.fake = fake
        self.mappings: list[Mapping] = []
        self.streams: list[int] = []

    def borrow(self, nbytes: int, timeout: float = 0) -> int:
        """Returns the size of the block, which is the last one from here on."""
        self.mappings.append(self.borrower.borrow_block(nbytes, timeout))
        return self.mappings[-1].nbytes

    def fill(self, value: int, microseconds: int = 0) -> None:
        """Launches work on the last block."""
        os.environ["FAKE_CUDA_WORK_US"] = str(microseconds)
        mapping = self.mappings[-1]
        self.streams.append(self.fake.stream())
        self.fake.fill(mapping.address, value, mapping.nbytes, self.streams[-1])

    def words(self) -> set[int]:
        mapping = self.mappings[-1]
        data = cuda.read(mapping.device, mapping.address, mapping.nbytes)
        return set(memoryview(data).cast("I"))

    def give_back(self, number: int = -1, with_streams: bool = False) -> None:
        return_block(self.mappings[number], self.streams if with_streams else None)

    def address(self) -> int:
        return self.mappings[-1].address

    def interface(self) -> dict[str, Any]:
        return self.mappings[-1].__cuda_array_interface__

    def revoked(self) -> tuple[bool, bool]:
        return self.mappings[-1].revoked, self.borrower.revoked

    def return_when_revoked(self) -> bool:
        """Works until the lender asks for the last block."""
        wait_until(lambda: self.mappings[-1].revoked)
        self.give_back()
        return True

    def want(self, nbytes: int) -> None:
        self.borrower.want(nbytes)

    def device(self) -> int:
        return self.mappings[-1].device

    def held(self) -> int:
        return len(self.borrower.mappings)

    def break_device(self) -> None:
        self.fake.break_device()

    def probe(self, timeout: float = PATIENCE) -> str | None:
        return answer_probe(self.borrower, timeout)

    def close(self) -> None:
        self.borrower.close()


def serve(
    ledger_handle: LedgerHandle, connection: Connection, library: str, environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    try:
        commands = Commands(ledger_handle, FakeCuda(library))
    except Exception as error:
        connection.send(error)
        return
    connection.send(None)
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(getattr(commands, name)(*arguments))
        except Exception as error:
            connection.send(error)


class Remote:
    """The test's end: ``remote.borrow(...)`` is done over there."""

    def __init__(self, lender: Lender, fake: FakeCuda, **environment: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        arguments = (lender.ledger_handle(), theirs, fake.library, environment)
        self.process = spawn.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.answer()

    def start(self, name: str, *arguments: Any) -> None:
        """Asks for something without waiting for it."""
        self._connection.send((name, arguments))

    def answer(self) -> Any:
        assert self._connection.poll(PATIENCE), "the borrower does not answer"
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.start(name, *arguments)
            return self.answer()

        return call

    def end(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE)
        self._connection.close()
