"""Whether memory can be shared between two given processes, found out by doing it once."""

from __future__ import annotations

from fusionloader.memory.borrower import Borrower
from fusionloader.memory.lender import Lender


def probe(lender: Lender, device: int = 0, timeout: float = 30.0) -> str | None:
    """Lends 2 MiB to a borrower that calls ``answer_probe``, and looks at what it wrote.

    That fails under MIG, in gVisor, and between containers with PID namespaces of their own.

    Args:
        lender: with one borrower.
        device: number of the device, in this process.
        timeout: seconds to wait for the borrower.

    Returns:
        Why memory cannot be shared, in words; ``None`` if it can.
    """
    raise NotImplementedError


def answer_probe(borrower: Borrower, timeout: float = 30.0) -> str | None:
    """The borrower's half of ``probe``.

    Returns:
        Why memory cannot be shared, in words; ``None`` if it can.
    """
    raise NotImplementedError
