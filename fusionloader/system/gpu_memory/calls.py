"""The four calls of FusionFlow §5.3, as functions: lend, borrow, return, reclaim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from fusionloader.system.gpu_memory.block import Block, CudaArray
from fusionloader.system.gpu_memory.borrower import Borrower, Mapping, open_borrowers
from fusionloader.system.gpu_memory.errors import GrantError, LedgerError
from fusionloader.system.gpu_memory.lender import PATIENCE, Grant, Lender, WhenOverdue, open_lenders

_End = TypeVar("_End", Lender, Borrower)


def yield_block(block: Block | CudaArray, lender: Lender | None = None) -> Grant:
    """Lends the use of GPU memory to other processes (FusionFlow's YieldBlk).

    The block is offered once the GPU has done the work enqueued for it until now. From this call
    until ``reclaim_block`` has returned, this process must neither use nor free the memory.

    Args:
        block: a ``Block``, or an object with ``__cuda_array_interface__``, such as a tensor.
        lender: the lender; ``None`` for the only one of this process.

    Raises:
        SizeError: the block has no bytes, or ends outside of its allocation.
        GrantError: a part of it is lent already, or other processes cannot open it (memory of
            expandable segments, of ``cudaMallocAsync``, or not of the device).
        LedgerError: too many blocks are lent, or there is not exactly one lender.
        CudaError: the driver refused.
        TypeError: it is no block.
    """
    return _only(lender, open_lenders, "Lender").yield_block(block)


def borrow_block(nbytes: int, borrower: Borrower | None = None, timeout: float = 0) -> Mapping:
    """Borrows the largest block on offer (FusionFlow's BorrowBlk).

    Args:
        nbytes: least size of the block in bytes.
        borrower: the borrower; ``None`` for the only one of this process.
        timeout: seconds to wait for a block. While it waits, the lender's ``wanted_bytes`` includes
            ``nbytes``.

    Raises:
        SizeError: ``nbytes`` is not positive.
        NotOfferedError: no such block was offered in time.
        PeerError: the lender has ended.
        DeviceError: the memory is on a GPU that this process does not see.
        LedgerError: there is not exactly one borrower.
        CudaError: the driver refused; a block that cannot be opened is returned.
    """
    return _only(borrower, open_borrowers, "Borrower").borrow_block(nbytes, timeout)


def return_block(mapping: Mapping, streams: Sequence[int] | None = None) -> None:
    """Returns a borrowed block. No more work may be launched on it.

    The call waits until the GPU has done the enqueued work and closes the mapping, before the
    lender may use the block.

    Args:
        mapping: a mapping of this process.
        streams: CUDA streams that used the block; ``None`` waits for all work of this process.

    Raises:
        GrantError: it was returned already, or belongs to another process.
        CudaError: this process's work failed; the lender gets the block when this process ends.
    """
    if not isinstance(mapping, Mapping):
        raise GrantError(f"a mapping comes from borrow_block; this is {mapping!r}")
    mapping.return_(streams)


def reclaim_block(
    grant: Grant, patience: float = PATIENCE, when_overdue: WhenOverdue = "kill"
) -> None:
    """Takes a block back. After the call, only the lender can use it.

    A block that is not borrowed is returned at once. Otherwise it is revoked, and the call waits
    for the borrower.

    Args:
        grant: a grant of this process.
        patience: seconds to wait for the borrower.
        when_overdue: what happens after that, see ``WhenOverdue``.

    Raises:
        GrantError: the grant is forged, stale or reclaimed, or the memory was freed while lent.
        NotReturnedError: the borrower has not returned the block.
        ValueError: ``when_overdue`` is none of the three, or ``patience`` is negative.
    """
    if not isinstance(grant, Grant):
        raise GrantError(f"a grant comes from yield_block; this is {grant!r}")
    grant.reclaim(patience, when_overdue)


def _only(given: _End | None, known: Iterable[_End], kind: str) -> _End:
    if given is not None:
        return given
    ends = list(known)
    if len(ends) != 1:
        raise LedgerError(f"this process has {len(ends)} objects {kind}: say which one is meant")
    return ends[0]
