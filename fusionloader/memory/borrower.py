"""The process that uses memory of another one for a while."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from fusionloader._native import cuda as native
from fusionloader.memory.invitation import Invitation

open_borrowers: weakref.WeakSet[Borrower] = weakref.WeakSet()


class Mapping:
    """A borrowed block, until it is returned. Only a borrower makes them.

    As a context manager it returns the block at the end. It has ``__cuda_array_interface__`` (bytes),
    so that ``torch.as_tensor(mapping, device="cuda")`` and CuPy can look into it; no such view may
    be used after the return.
    """

    __slots__ = ("__weakref__", "_borrower", "_loan")

    def __init__(self, borrower: Borrower, loan: native.Loan) -> None:
        self._borrower = borrower
        self._loan = loan

    @property
    def address(self) -> int:
        """On the device, in this process.

        Raises:
            GrantError: the block was returned.
        """
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Size of the block: at least what was asked for."""
        raise NotImplementedError

    @property
    def device(self) -> int:
        """Number of the device in this process."""
        raise NotImplementedError

    @property
    def revoked(self) -> bool:
        """Whether the lender asks for it: return it at once (one atomic load)."""
        raise NotImplementedError

    @property
    def returned(self) -> bool:
        """Whether it was returned."""
        raise NotImplementedError

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }

    def return_(self, streams: Sequence[int] | None = None) -> None:
        """Gives it back, see ``return_block``."""
        self._borrower.return_block(self, streams)

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.returned:
            self.return_()

    def __reduce__(self) -> Any:
        raise TypeError("a mapping is of use only in the process that borrowed it")


class Borrower:
    """A seat at a lender's ledger; a process has one seat, and keeps it until it ends or closes.

    As a context manager it returns everything at the end.

    Args:
        invitation: from ``Lender.invitation()``.

    Raises:
        LedgerError: what was given is no ledger of this version, or all seats are taken.
        PeerError: the lender belongs to another user, or has ended.
        UnavailableError: there is no CUDA driver here.
    """

    def __init__(self, invitation: Invitation) -> None:
        self._native = native.Borrower(invitation.fd)
        open_borrowers.add(self)

    def want(self, nbytes: int) -> None:
        """Says how many more bytes would be of use; 0 when none. Lenders lend by this."""
        raise NotImplementedError

    def borrow_block(self, nbytes: int, timeout: float = 0) -> Mapping:
        """Borrows a block, see ``borrow_block``."""
        raise NotImplementedError

    def try_borrow(self, nbytes: int) -> Mapping | None:
        """Returns the largest block on offer with at least ``nbytes``, ``None`` if there is none."""
        raise NotImplementedError

    def return_block(self, mapping: Mapping, streams: Sequence[int] | None = None) -> None:
        """Returns a block, see ``return_block``."""
        raise NotImplementedError

    @property
    def mappings(self) -> list[Mapping]:
        """Those that were not returned yet."""
        raise NotImplementedError

    @property
    def revoked(self) -> bool:
        """Whether the lender asks for any of them."""
        raise NotImplementedError

    @property
    def lender_lives(self) -> bool:
        """Whether the lender's process runs."""
        raise NotImplementedError

    def wait_for_change(self, timeout: float) -> None:
        """Sleeps until the lender offers or asks back something, at most ``timeout`` seconds.

        It may return early. Look at ``revoked`` and ``try_borrow`` again afterwards.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Returns everything and leaves the seat."""
        raise NotImplementedError

    def __enter__(self) -> Borrower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
