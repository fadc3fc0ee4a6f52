"""What a borrower needs to find its lender: the descriptor of the ledger."""

from __future__ import annotations

import os
from multiprocessing import reduction
from typing import Any


class LedgerHandle:
    """Given to one process, as an argument of a ``multiprocessing`` process.

    Where a process is started otherwise, pass ``fd`` on (``subprocess``'s ``pass_fds``), keep the
    ledger handle until then, and make an ``LedgerHandle(fd)`` there.

    Attributes:
        fd: descriptor of the ledger. It is closed with the ledger handle.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.fd),)

    def close(self) -> None:
        """Closes the descriptor; a borrower that was made with it goes on."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


def _received(duplicate: Any) -> LedgerHandle:
    return LedgerHandle(duplicate.detach())
