"""The process that borrows GPU memory of another process."""

from __future__ import annotations

import operator
import os
import time
import weakref
from collections.abc import Sequence
from multiprocessing import reduction
from typing import NoReturn, Protocol

from fusionloader._native import cuda as native
from fusionloader.system.gpu_memory.errors import GrantError, NotOfferedError, PeerError, SizeError

# More than any device has. Larger numbers do not fit the ledger.
_MOST_BYTES = 2**62
# Interval of checks whether the lender lives, because no futex wakes for that.
_LOOKING_SECONDS = 0.1

open_borrowers: weakref.WeakSet[Borrower] = weakref.WeakSet()


class _Duplicate(Protocol):
    """A descriptor on its way to another process."""

    def detach(self) -> int: ...


class LedgerHandle:
    """A handle of a lender's ledger, which a ``Borrower`` needs.

    Pass it as an argument to a ``multiprocessing`` process. A process that is started otherwise
    inherits ``fd`` (``pass_fds`` of ``subprocess``) and makes a ``LedgerHandle(fd)`` of it; keep
    this handle until the process has started.

    Attributes:
        fd: descriptor of the ledger, closed with the handle; -1 afterwards.
    """

    def __init__(self, fd: int) -> None:
        self.fd: int = fd

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (reduction.DupFd(self.fd),)

    def close(self) -> None:
        """Closes the descriptor. Borrowers that were made with it continue to work."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


def _received(duplicate: _Duplicate) -> LedgerHandle:
    return LedgerHandle(duplicate.detach())


class Mapping:
    """A borrowed block, made by a ``Borrower``.

    As a context manager, it returns the block at the end. It has a ``__cuda_array_interface__`` of
    bytes, so ``torch.as_tensor(mapping, device="cuda")`` and CuPy make views of it. Such a view
    must not be used after the block was returned.
    """

    __slots__ = ("__weakref__", "_borrower", "_loan")

    def __init__(self, borrower: Borrower, loan: native.Loan) -> None:
        self._borrower = borrower
        self._loan = loan

    @property
    def address(self) -> int:
        """Address on the device, in this process.

        Raises:
            GrantError: the block was returned.
        """
        if self.returned:
            raise GrantError("the block was returned: its address is no longer valid")
        return self._loan.address

    @property
    def nbytes(self) -> int:
        """Size of the block in bytes, at least the requested size."""
        return self._loan.nbytes

    @property
    def device(self) -> int:
        """Number of the device in this process."""
        return self._loan.device

    @property
    def revoked(self) -> bool:
        """Whether the lender wants the block back: then return it at once. One atomic load."""
        return not self.returned and self._borrower._native.is_revoked(self._loan.ticket)

    @property
    def returned(self) -> bool:
        """Whether the block was returned."""
        return self._borrower._held.get(id(self)) is not self

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }

    def return_(self, streams: Sequence[int] | None = None) -> None:
        """Returns the block, see ``return_block``."""
        self._borrower.return_block(self, streams)

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.returned:
            self.return_()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a mapping is of use only in the process that borrowed it")


class Borrower:
    """A borrower of a lender's memory. A process has one per lender.

    As a context manager, it returns everything at the end.

    Args:
        ledger_handle: result of ``Lender.ledger_handle()``.

    Raises:
        LedgerError: it is no ledger of this version, or it has 8 borrowers already.
        PeerError: the lender belongs to another user, or has ended.
        UnavailableError: there is no CUDA driver.
        TypeError: ``ledger_handle`` is not a ``LedgerHandle``.
    """

    def __init__(self, ledger_handle: LedgerHandle) -> None:
        if not isinstance(ledger_handle, LedgerHandle):
            raise TypeError(
                "a borrower is made with the LedgerHandle of a lender, or LedgerHandle(fd), not "
                f"{type(ledger_handle).__name__}"
            )
        self._native = native.Borrower(ledger_handle.fd)
        self._held: dict[int, Mapping] = {}
        self._seen = self._native.change_count
        self._closed = False
        open_borrowers.add(self)

    def want(self, nbytes: int) -> None:
        """Publishes the number of bytes wanted, which the lender reads as ``wanted_bytes``.

        Raises:
            SizeError: ``nbytes`` is negative.
        """
        nbytes = operator.index(nbytes)
        if nbytes < 0:
            raise SizeError(f"0 bytes or more can be wanted, not {nbytes}")
        self._native.want(min(nbytes, _MOST_BYTES))

    def borrow_block(self, nbytes: int, timeout: float = 0) -> Mapping:
        """Borrows a block, see ``borrow_block``."""
        mapping = self.try_borrow(nbytes)
        if mapping is not None:
            return mapping
        deadline = time.monotonic() + timeout
        if timeout > 0:
            self.want(nbytes)
            try:
                mapping = self._wait_for_block(nbytes, deadline)
            finally:
                self.want(0)
        if mapping is None:
            raise NotOfferedError(f"no block of {nbytes} bytes is on offer now")
        return mapping

    def _wait_for_block(self, nbytes: int, deadline: float) -> Mapping | None:
        while True:
            seen = self._native.change_count
            mapping = self.try_borrow(nbytes)
            left = deadline - time.monotonic()
            if mapping is not None or left <= 0:
                return mapping
            if not self.lender_lives or self._native.is_closed:
                raise PeerError("the lender has ended")
            self._native.wait(seen, min(left, _LOOKING_SECONDS))

    def try_borrow(self, nbytes: int) -> Mapping | None:
        """Borrows the largest block on offer; returns ``None`` if that is less than ``nbytes``."""
        return self._borrow(nbytes, probe=False)

    def _borrow(self, nbytes: int, *, probe: bool) -> Mapping | None:
        nbytes = operator.index(nbytes)
        if nbytes < 1:
            raise SizeError(f"at least 1 byte must be borrowed, not {nbytes}")
        if nbytes > _MOST_BYTES:
            return None
        loan = self._native.borrow(nbytes, probe)
        if loan is None:
            return None
        mapping = Mapping(self, loan)
        self._held[id(mapping)] = mapping
        return mapping

    def return_block(self, mapping: Mapping, streams: Sequence[int] | None = None) -> None:
        """Returns a block, see ``return_block``."""
        if not isinstance(mapping, Mapping) or self._held.get(id(mapping)) is not mapping:
            raise GrantError(
                f"{mapping!r} is not borrowed by this process, or was returned already"
            )
        self._native.give_back(mapping._loan.ticket, None if streams is None else list(streams))
        del self._held[id(mapping)]

    @property
    def mappings(self) -> list[Mapping]:
        """Mappings that were not returned yet."""
        return list(self._held.values())

    @property
    def revoked(self) -> bool:
        """Whether the lender wants any of the mappings back."""
        return self._native.any_revoked()

    @property
    def lender_lives(self) -> bool:
        """Whether the lender's process runs."""
        return self._native.lender_lives

    def wait_for_change(self, timeout: float) -> None:
        """Sleeps until the lender offers or revokes a block, at most ``timeout`` seconds.

        It returns at once if something changed since the last call. Check ``revoked`` and
        ``try_borrow`` afterwards.
        """
        self._native.wait(self._seen, timeout)
        self._seen = self._native.change_count

    def close(self) -> None:
        """Returns everything and frees the borrower slot.

        Raises:
            CudaError: as in ``return_block``; the borrower stays open.
        """
        if self._closed:
            return
        for mapping in self.mappings:
            self.return_block(mapping)
        self._native.leave()
        self._closed = True
        open_borrowers.discard(self)

    def __enter__(self) -> Borrower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
