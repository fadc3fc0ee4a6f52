"""The four calls that lend, borrow and end both (FusionFlow §5.3), as functions."""

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

    It is on offer as soon as the GPU has done what it was given for that memory until now. From
    then until ``reclaim_block`` has returned it must be neither used nor freed here.

    Args:
        block: a ``Block``, or what has ``__cuda_array_interface__``, such as a tensor.
        lender: ``None`` for the only one of this process.

    Raises:
        SizeError: it has no bytes, or ends outside of its allocation.
        GrantError: it is lent already in part, or cannot be opened by other processes (memory of
            expandable segments, of ``cudaMallocAsync``, or not of the device).
        LedgerError: too many blocks are lent, or there is not just one lender.
        CudaError: the driver refused.
        TypeError: it is no block.
    """
    return _only(lender, open_lenders, "Lender").yield_block(block)


def borrow_block(nbytes: int, borrower: Borrower | None = None, timeout: float = 0) -> Mapping:
    """Takes the use of the largest block on offer (FusionFlow's BorrowBlk).

    Args:
        nbytes: that it must have at least.
        borrower: ``None`` for the only one of this process.
        timeout: seconds to wait for one. Meanwhile the lender's ``wanted_bytes`` counts it.

    Raises:
        SizeError: ``nbytes`` is not positive.
        NotOfferedError: there was none in time.
        PeerError: the lender has ended.
        DeviceError: the memory is of a GPU that this process does not see.
        LedgerError: there is not just one borrower.
        CudaError: the driver refused; a block that cannot be opened goes back.
    """
    return _only(borrower, open_borrowers, "Borrower").borrow_block(nbytes, timeout)


def return_block(mapping: Mapping, streams: Sequence[int] | None = None) -> None:
    """Gives a borrowed block back. Nothing may be launched on it any more.

    It waits until the GPU has done what it was given, and closes the mapping, before the block is
    the lender's.

    Args:
        mapping: of this process.
        streams: CUDA streams that used the block; ``None`` waits for all work of this process.

    Raises:
        GrantError: it was returned already, or is of another process.
        CudaError: this process's work failed; the block is the lender's when this process ends.
    """
    if not isinstance(mapping, Mapping):
        raise GrantError(f"a mapping comes from borrow_block; this is {mapping!r}")
    mapping.return_(streams)


def reclaim_block(
    grant: Grant, patience: float = PATIENCE, when_overdue: WhenOverdue = "kill"
) -> None:
    """Takes a block back: when this returns, it is the lender's alone.

    A block that is not borrowed is back at once. Otherwise the borrower is asked, and waited for.

    Args:
        grant: of this process.
        patience: seconds to wait for the borrower.
        when_overdue: what then, see ``WhenOverdue``.

    Raises:
        GrantError: the grant is forged, stale or reclaimed; or the memory was freed while lent.
        NotReturnedError: the borrower still has it.
        ValueError: ``when_overdue`` is none of the three, or ``patience`` negative.
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
