"""The borrowing process of the tests of memory sharing: does what it is told."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from fusionloader.system.gpu_memory import (
    Borrower,
    CudaError,
    LedgerHandle,
    Mapping,
    NotOfferedError,
    PeerError,
    answer_probe,
)
from support.cuda_driver import Driver

_PR_SET_PDEATHSIG = 1


class Child:
    """Commands are its methods; what they return or raise is the answer.

    Blocks have numbers in the order in which they were borrowed; -1 is the last one.
    """

    def __init__(self, ledger_fd: int, device: int) -> None:
        self.driver = Driver(device)
        self.stream = self.driver.stream()
        self.borrower = Borrower(LedgerHandle(ledger_fd))
        self.blocks: list[Mapping] = []

    def probe(self, timeout: float = 60.0) -> str | None:
        return answer_probe(self.borrower, timeout)

    def want(self, nbytes: int) -> None:
        self.borrower.want(nbytes)

    def borrow(self, nbytes: int, timeout: float = 60.0) -> int:
        """Returns the size of the block."""
        self.blocks.append(self.borrower.borrow_block(nbytes, timeout))
        return self.blocks[-1].nbytes

    def words(self, at: int = 0, nbytes: int | None = None) -> set[int]:
        """The different 32-bit words of the last block, or of a part of it."""
        block = self.blocks[-1]
        count = (nbytes or block.nbytes - at) // 4
        return set(self.driver.words(block.address + at, self.stream, count))

    def fill(self, word: int, microseconds: int | None = None) -> None:
        """Launches work on the last block."""
        if microseconds is not None:
            os.environ["FAKE_CUDA_WORK_US"] = str(microseconds)
        block = self.blocks[-1]
        self.driver.fill(block.address, word, block.nbytes, self.stream)

    def give_back(self, number: int = -1, with_streams: bool = False) -> None:
        self.blocks[number].return_([self.stream] if with_streams else None)

    def timed(self, command: str, **arguments: Any) -> float:
        """Returns the seconds that a command takes."""
        began = time.perf_counter()
        getattr(self, command)(**arguments)
        return time.perf_counter() - began

    def address(self) -> int:
        return self.blocks[-1].address

    def interface(self) -> dict[str, Any]:
        return self.blocks[-1].__cuda_array_interface__

    def device(self) -> int:
        return self.blocks[-1].device

    def held(self) -> int:
        return len(self.borrower.mappings)

    def revoked(self) -> tuple[bool, bool]:
        return self.blocks[-1].revoked, self.borrower.revoked

    def break_device(self) -> None:
        ctypes.CDLL(os.environ["FUSIONLOADER_LIBCUDA"]).fakeBreak()

    def serve(self) -> None:
        """Writes until it is asked to stop, and looks before each launch, as a worker should."""
        block, word = self.blocks[-1], 0
        while not block.revoked:
            self.driver.fill(block.address, word, block.nbytes, self.stream)
            self.driver.synchronize(self.stream)
            word += 1
        block.return_()

    def return_when_asked(self) -> None:
        """Waits until something is asked for, and returns everything."""
        while not self.borrower.revoked:
            self.borrower.wait_for_change(1)
        for block in self.borrower.mappings:
            block.return_()

    def hog(self, word: int) -> None:
        """Writes for ever and never looks."""
        while True:
            for _ in range(8):  # so that there is always work on the device when it is killed
                self.fill(word)
            self.driver.synchronize(self.stream)

    def storm(self, seed: int, lenders: int, borrowers: int) -> None:
        """Borrows, looks, writes, returns until the lender has ended; an error ends the process.

        A block that was offered before the lender's own work was done is one. ``lenders`` and
        ``borrowers`` are the highest four bits of what each side writes.
        """
        try:
            self._storm(random.Random(seed), lenders, borrowers << 28 | os.getpid())
        except Exception as error:
            raise SystemExit(f"{type(error).__name__}: {error}") from None

    def _storm(self, chance: random.Random, lenders: int, mark: int) -> None:
        streams = [self.stream, self.driver.stream()]
        while self.borrower.lender_lives:
            try:
                self.borrow(1, 1)
            except (CudaError, NotOfferedError, PeerError):
                continue  # the lender may have taken it back and freed it meanwhile
            block = self.blocks.pop()
            # Now, as the fake driver allows: a copy would wait, and let the lender's work be done.
            found = set(memoryview(ctypes.string_at(block.address, block.nbytes)).cast("I"))
            assert {word >> 28 for word in found} == {lenders} and len(found) == 1, found
            for _ in range(chance.randrange(5)):
                self.driver.fill(block.address, mark, block.nbytes, chance.choice(streams))
                if self.borrower.revoked:
                    break
            block.return_(chance.choice([streams, None]))

    def sleep(self) -> None:
        """Does nothing any more."""
        while True:
            signal.pause()

    def prepare_launches(self, most_own: int, most_borrowed: int) -> None:
        from support.scripted_launches import Launches

        self.launches = Launches(self.borrower, most_own, most_borrowed)

    def launch(self, samples: int, wait_at: int | None = None) -> dict[str, Any]:
        return self.launches.run(samples, wait_at)

    def rest(self) -> dict[str, Any]:
        return self.launches.rest()

    def torch_pool(self) -> dict[str, Any]:
        from support.torch_in_pool import use_torch

        return use_torch(self.blocks)

    def dali_pool(self) -> dict[str, Any]:
        from support.dali_in_pool import use_dali

        return use_dali(self.blocks)

    def close(self) -> None:
        self.borrower.close()


def main(ledger_fd: int, channel: int, parent: int, device: int) -> None:
    """Serves until its parent says goodbye or is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    connection = Connection(channel)
    child = Child(ledger_fd, device)
    connection.send(None)
    while True:
        try:
            name, positional, named = connection.recv()
        except EOFError:
            break
        try:
            answer = getattr(child, name)(*positional, **named)
        except Exception as error:
            answer = error
        connection.send(answer)
    child.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
