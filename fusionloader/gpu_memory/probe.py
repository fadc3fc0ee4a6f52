"""Whether memory can be shared between two given processes, found out by doing it once."""

from __future__ import annotations

import time

from fusionloader._native import cuda as native
from fusionloader.gpu_memory.block import Block
from fusionloader.gpu_memory.borrower import Borrower, Mapping
from fusionloader.gpu_memory.errors import MemorySharingError
from fusionloader.gpu_memory.lender import Grant, Lender

_NBYTES = 2 << 20
_ASKED, _ANSWERED = 0x3C3C5A5A, 0xA5A5C3C3
_LOOKING_SECONDS = 0.005


def probe(lender: Lender, device: int = 0, timeout: float = 30.0) -> str | None:
    """Lends 2 MiB to a borrower that calls ``answer_probe``, and looks at what it wrote.

    That fails under MIG, in gVisor, and between containers with PID namespaces of their own. A
    borrower that does not return the block in time is killed if it is a child of this process.

    Args:
        lender: with one borrower.
        device: number of the device, in this process.
        timeout: seconds to wait for the borrower.

    Returns:
        Why memory cannot be shared, in words; ``None`` if it can.
    """
    grant = None
    try:
        address = native.allocate(device, _NBYTES)
        try:
            native.fill(device, address, _ASKED, _NBYTES // 4)
            grant = lender._lend(Block(address, _NBYTES), probe=True)
            returned = _wait_for_return(lender, grant, timeout)
            grant.reclaim()
            answered = _holds(device, address, _ANSWERED)
        finally:
            # What is not back may be open in another process.
            if grant is None or grant.state == "free":
                native.free(device, address)
    except MemorySharingError as error:
        return str(error)
    if not returned:
        return f"no process has taken and returned a block within {timeout:g} s"
    return None if answered else "the other process could not write into the block that was lent"


def _wait_for_return(lender: Lender, grant: Grant, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while grant.state != "returned" and time.monotonic() < deadline:
        lender._native.wait(lender._native.change_count, _LOOKING_SECONDS)
    return grant.state == "returned"


def answer_probe(borrower: Borrower, timeout: float = 30.0) -> str | None:
    """The borrower's half of ``probe``.

    Returns:
        Why memory cannot be shared, in words; ``None`` if it can.
    """
    deadline = time.monotonic() + timeout
    try:
        while (mapping := borrower._borrow(_NBYTES, probe=True)) is None:
            if time.monotonic() >= deadline or not borrower.lender_lives:
                return f"the lender has offered no block within {timeout:g} s"
            borrower._native.wait(borrower._native.change_count, _LOOKING_SECONDS)
        return _answer(mapping)
    except MemorySharingError as error:
        return str(error)


def _answer(mapping: Mapping) -> str | None:
    with mapping:
        if not _holds(mapping.device, mapping.address, _ASKED):
            return "the block that was lent does not hold what the lender wrote"
        native.fill(mapping.device, mapping.address, _ANSWERED, _NBYTES // 4)
    return None


def _holds(device: int, address: int, value: int) -> bool:
    return native.read(device, address, _NBYTES) == value.to_bytes(4, "little") * (_NBYTES // 4)
