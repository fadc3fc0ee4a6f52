"""Tests whether two given processes can share GPU memory, by lending a block once."""

from __future__ import annotations

import time

from fusionloader._native import cuda as native
from fusionloader.system.gpu_memory.block import Block
from fusionloader.system.gpu_memory.borrower import Borrower
from fusionloader.system.gpu_memory.errors import MemorySharingError, PeerError
from fusionloader.system.gpu_memory.lender import Grant, Lender

_NBYTES = 2 << 20
_ASKED, _ANSWERED = 0x3C3C5A5A, 0xA5A5C3C3
_LOOKING_SECONDS = 0.005


def probe(lender: Lender, device: int = 0, timeout: float = 30.0) -> str | None:
    """Lends 2 MiB to a borrower that calls ``answer_probe``, and checks what the borrower wrote.

    It fails under MIG, in gVisor, and between containers with separate PID namespaces. A borrower
    that does not return the block in time is killed if it is a child of this process.

    Args:
        lender: a lender with one borrower.
        device: number of the device in this process.
        timeout: seconds to wait for the borrower.

    Returns:
        A text that says why memory cannot be shared; ``None`` if it can.
    """
    try:
        under_way = Probe(lender, device, timeout)
        while not under_way.is_over():
            lender._native.wait(lender._native.change_count, _LOOKING_SECONDS)
    except MemorySharingError as error:
        return str(error)
    return under_way.refused


class Probe:
    """``probe`` in steps, for a caller that must not wait for another process.

    Every step allocates, frees or synchronizes on the device, so none may run while a CUDA graph is
    captured.

    Attributes:
        refused: text that says why memory cannot be shared, set at the end; ``None`` if it can.
    """

    def __init__(self, lender: Lender, device: int, timeout: float) -> None:
        """Lends the block, see ``probe``.

        Raises:
            MemorySharingError: the block could not be allocated or lent.
        """
        self.refused: str | None = None
        self._device, self._timeout = device, timeout
        self._deadline = time.monotonic() + timeout
        self._address = native.allocate(device, _NBYTES)
        try:
            native.fill(device, self._address, _ASKED, _NBYTES // 4)
            self._grant: Grant = lender._lend(Block(self._address, _NBYTES), probe=True)
        except MemorySharingError:
            native.free(device, self._address)
            raise

    def is_over(self) -> bool:
        """Whether the borrower has answered, or the time is over. Ends the probe in both cases.

        Raises:
            MemorySharingError: the block could not be taken back or read.
        """
        returned = self._grant.state == "returned"
        if not returned and time.monotonic() < self._deadline:
            return False
        self.end(returned)
        return True

    def end(self, returned: bool = False) -> None:
        """Takes the block back, and checks the answer if the block was ``returned``.

        Raises:
            MemorySharingError: the block could not be taken back or read.
        """
        try:
            self._grant.reclaim()
            answered = returned and _holds(self._device, self._address, _ANSWERED)
        finally:
            if self._grant.state == "free":  # otherwise another process may have it open
                native.free(self._device, self._address)
        if not returned:
            within = f"within {self._timeout:g} s"
            self.refused = f"no process has taken and returned a block {within}"
        elif not answered:
            self.refused = "the other process could not write into the block that was lent"


def answer_probe(borrower: Borrower, timeout: float = 30.0) -> str | None:
    """Answers ``probe`` in the borrower's process.

    Returns:
        A text that says why memory cannot be shared; ``None`` if it can.
    """
    deadline = time.monotonic() + timeout
    try:
        while not answer_if_asked(borrower):
            if time.monotonic() >= deadline or not borrower.lender_lives:
                return f"the lender has offered no block within {timeout:g} s"
            borrower._native.wait(borrower._native.change_count, _LOOKING_SECONDS)
    except MemorySharingError as error:
        return str(error)
    return None


def answer_if_asked(borrower: Borrower) -> bool:
    """Answers a probe that is waiting; returns ``False`` if there is none.

    Raises:
        MemorySharingError: memory cannot be shared.
    """
    mapping = borrower._borrow(_NBYTES, probe=True)
    if mapping is None:
        return False
    with mapping:
        if not _holds(mapping.device, mapping.address, _ASKED):
            raise PeerError("the block that was lent does not hold what the lender wrote")
        native.fill(mapping.device, mapping.address, _ANSWERED, _NBYTES // 4)
    return True


def _holds(device: int, address: int, value: int) -> bool:
    return native.read(device, address, _NBYTES) == value.to_bytes(4, "little") * (_NBYTES // 4)
