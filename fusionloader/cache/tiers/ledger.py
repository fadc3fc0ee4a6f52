"""How much the stores of a cache may take: charged before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fusionloader import _native
from fusionloader.system.shm.shared_page import PAGE, SharedPage

_WORDS = 5  # as csrc/worker/ledger.hpp has them
_MAGIC = int.from_bytes(b"FLedger1", "little")  # another layout has another number


class Account(NamedTuple):
    """Bytes of memory or of a disk: how many there may be, and how many are used."""

    limit: int
    used: int


class Ledger(SharedPage):
    """The ledger of ``csrc/worker/ledger.hpp``: one budget for several stores and processes.

    What is charged are whole pages, as the system gives them.

    Attributes:
        view: for stores that are opened in this process.
    """

    def __init__(self, fd: int) -> None:
        """Maps the ledger behind a descriptor, which it then owns."""
        super().__init__(fd)
        self.view = _native.LedgerView(fd)
        self._words = np.frombuffer(self._page, np.uint64, _WORDS)

    @classmethod
    def create(cls, memory: int, disk: int = 0) -> Ledger:
        """Returns a ledger with so many bytes of shared memory and of disk."""
        words = (memory // PAGE * PAGE, 0, disk // PAGE * PAGE, 0, _MAGIC)
        return cls(cls._made("ledger", np.array(words, np.uint64).tobytes()))

    @property
    def memory(self) -> Account:
        """Of shared memory."""
        return Account(int(self._words[0]), int(self._words[1]))

    @property
    def disk(self) -> Account:
        """Of the disk."""
        return Account(int(self._words[2]), int(self._words[3]))

    def charge(self, nbytes: int, disk: bool = False) -> bool:
        """Charges whole pages for so many bytes; false, and nothing is, beyond the limit."""
        return self.view.charge(disk, whole_pages(nbytes))

    def refund(self, nbytes: int, disk: bool = False) -> None:
        """Takes back what was charged for so many bytes."""
        self.view.refund(disk, whole_pages(nbytes))


def whole_pages(nbytes: int) -> int:
    """Returns what so many bytes take of the system's memory."""
    return -(-nbytes // PAGE) * PAGE
