"""Lending GPU memory to another process: ``yield_block``, ``borrow_block``, and how both end.

For any program with CUDA, see docs/memory.md. Imports nothing of the package but native code.
"""

from __future__ import annotations

from fusionloader.memory.block import Block
from fusionloader.memory.borrower import Borrower, Mapping
from fusionloader.memory.calls import borrow_block, reclaim_block, return_block, yield_block
from fusionloader.memory.errors import (
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
from fusionloader.memory.invitation import Invitation
from fusionloader.memory.late import WhenLate
from fusionloader.memory.lender import Grant, Lender, LendingStats
from fusionloader.memory.probe import answer_probe, probe

__all__ = [
    "Block",
    "Borrower",
    "CudaError",
    "DeviceError",
    "Grant",
    "GrantError",
    "Invitation",
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
    "WhenLate",
    "answer_probe",
    "borrow_block",
    "probe",
    "reclaim_block",
    "return_block",
    "yield_block",
]
