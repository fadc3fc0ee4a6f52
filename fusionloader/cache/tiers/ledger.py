"""The budget of a cache's stores, charged before memory is allocated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fusionloader import _native
from fusionloader.system.shm.objects import PAGE, SharedPage

_WORDS = 5  # as csrc/worker/ledger.hpp has them
_MAGIC = int.from_bytes(b"FLedger1", "little")  # another layout has another number


class Account(NamedTuple):
    """Bytes of memory or disk: the limit, and the bytes charged."""

    limit: int
    used: int


class Ledger(SharedPage):
    """The ledger of ``csrc/worker/ledger.hpp``: one budget for several stores and processes.

    Charges are rounded up to whole pages.

    Attributes:
        view: view for stores that are opened in this process.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.view = _native.LedgerView(fd)
        self._words = np.frombuffer(self._page, np.uint64, _WORDS)

    @classmethod
    def create(cls, memory: int, disk: int = 0) -> Ledger:
        """Makes a ledger with limits in bytes of shared memory and disk."""
        words = (memory // PAGE * PAGE, 0, disk // PAGE * PAGE, 0, _MAGIC)
        return cls(cls._made("ledger", np.array(words, np.uint64).tobytes()))

    @property
    def memory(self) -> Account:
        return Account(int(self._words[0]), int(self._words[1]))

    @property
    def disk(self) -> Account:
        return Account(int(self._words[2]), int(self._words[3]))

    def charge(self, nbytes: int, disk: bool = False) -> bool:
        """Charges ``nbytes``; charges nothing and returns ``False`` if the limit is exceeded."""
        return self.view.charge(disk, whole_pages(nbytes))

    def refund(self, nbytes: int, disk: bool = False) -> None:
        self.view.refund(disk, whole_pages(nbytes))


def whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
