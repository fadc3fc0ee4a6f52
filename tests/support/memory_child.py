"""The borrowing process of the tests of memory sharing: does what it is told, a line at a time."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

from fusionloader.system.gpu_memory import Borrower, LedgerHandle, Mapping, answer_probe
from support.cuda_driver import Driver

_PR_SET_PDEATHSIG = 1


class Child:
    """Commands are its methods; what they return is the answer."""

    def __init__(self, ledger_fd: int, device: int) -> None:
        self.driver = Driver(device)
        self.stream = self.driver.stream()
        self.borrower = Borrower(LedgerHandle(ledger_fd))
        self.blocks: list[Mapping] = []

    def probe(self) -> dict[str, Any]:
        return {"refused": answer_probe(self.borrower)}

    def want(self, nbytes: int) -> dict[str, Any]:
        self.borrower.want(nbytes)
        return {}

    def borrow(self, nbytes: int, timeout: float = 60.0) -> dict[str, Any]:
        asked = time.perf_counter()
        block = self.borrower.borrow_block(nbytes, timeout)
        self.blocks.append(block)
        seconds = time.perf_counter() - asked
        return {"number": len(self.blocks) - 1, "nbytes": block.nbytes, "seconds": seconds}

    def words(self, number: int, at: int = 0, count: int = 1) -> dict[str, Any]:
        address = self.blocks[number].address + at
        return {"words": self.driver.words(address, self.stream, count)}

    def fill(self, number: int, word: int) -> dict[str, Any]:
        block = self.blocks[number]
        self.driver.fill(block.address, word, block.nbytes, self.stream)
        return {}

    def give_back(self, number: int) -> dict[str, Any]:
        began = time.perf_counter()
        self.blocks[number].return_()
        return {"seconds": time.perf_counter() - began}

    def serve(self, number: int) -> None:
        """Writes until it is asked to stop, and looks before each launch, as a worker should."""
        block, word = self.blocks[number], 0
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

    def hog(self, number: int, word: int) -> None:
        """Writes for ever and never looks."""
        block = self.blocks[number]
        while True:
            for _ in range(8):  # so that there is always work on the device when it is killed
                self.driver.fill(block.address, word, block.nbytes, self.stream)
            self.driver.synchronize(self.stream)

    def sleep(self) -> None:
        """Does nothing any more."""
        while True:
            signal.pause()

    def lender_lives(self) -> dict[str, Any]:
        return {"lives": self.borrower.lender_lives}

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


def main(ledger_fd: int, parent: int, device: int) -> None:
    """Serves until its parent says goodbye or is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    child = Child(ledger_fd, device)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(child, command.pop("do"))(**command) or {}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    child.borrower.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
