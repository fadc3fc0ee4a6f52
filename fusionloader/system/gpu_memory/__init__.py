"""Lends GPU memory to other processes: ``yield_block``, ``borrow_block``, and their ends.

It serves any CUDA program, see docs/scale/gpu_memory.md. Of the package, it needs little more than
the native code.
"""

from __future__ import annotations

from fusionloader.system.gpu_memory.block import Block
from fusionloader.system.gpu_memory.borrower import Borrower, LedgerHandle, Mapping
from fusionloader.system.gpu_memory.calls import (
    borrow_block,
    reclaim_block,
    return_block,
    yield_block,
)
from fusionloader.system.gpu_memory.errors import (
    CudaError,
    DeviceError,
    GrantError,
    LedgerError,
    MemorySharingError,
    NotOfferedError,
    NotReturnedError,
    PeerError,
    SizeError,
    UnavailableError,
)
from fusionloader.system.gpu_memory.lender import Grant, Lender, LendingStats, WhenOverdue
from fusionloader.system.gpu_memory.probe import answer_probe, probe

__all__ = [
    "Block",
    "Borrower",
    "CudaError",
    "DeviceError",
    "Grant",
    "GrantError",
    "LedgerHandle",
    "LedgerError",
    "Lender",
    "LendingStats",
    "Mapping",
    "MemorySharingError",
    "NotOfferedError",
    "NotReturnedError",
    "PeerError",
    "SizeError",
    "UnavailableError",
    "WhenOverdue",
    "answer_probe",
    "borrow_block",
    "probe",
    "reclaim_block",
    "return_block",
    "yield_block",
]
