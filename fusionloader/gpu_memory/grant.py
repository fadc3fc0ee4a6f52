"""What a lender has lent: a grant for each block, and the sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusionloader._native import cuda as native
from fusionloader.gpu_memory.block import Block
from fusionloader.gpu_memory.overdue import WhenOverdue

if TYPE_CHECKING:
    from fusionloader.gpu_memory.lender import Lender

PATIENCE = 0.03
"""Seconds that a borrower has, unless said otherwise, to return what is asked back.

Of the 50 ms in which memory is to be back, the rest is for a killed borrower to end."""


@dataclass(frozen=True, slots=True)
class LendingStats:
    """Of one lender, in bytes where not said otherwise.

    Attributes:
        lent: with grants that are not reclaimed, now.
        borrowed: of these, with a borrower now.
        lent_ever: of all grants so far.
        borrowed_ever: of all mappings so far.
        revoked_ever: asked back while a borrower had it.
        killed: borrowers that were killed because they were late.
    """

    lent: int
    borrowed: int
    lent_ever: int
    borrowed_ever: int
    revoked_ever: int
    killed: int


class Grant:
    """A block that is lent, until it is reclaimed. Only a lender makes them.

    As a context manager it reclaims the block at the end.

    Attributes:
        block: what is lent.
    """

    __slots__ = ("__weakref__", "_lender", "_ticket", "block")

    def __init__(self, lender: Lender, block: Block, ticket: native.Ticket) -> None:
        self._lender = lender
        self._ticket = ticket
        self.block = block

    @property
    def state(self) -> str:
        """Where the block is, in one word.

        ``"armed"`` (on offer when its stream gets there), ``"yielded"``, ``"borrowed"``,
        ``"revoking"``, ``"quarantined"``, ``"returned"``, or ``"free"`` once it is reclaimed.
        """
        return self._lender._state(self)

    def reclaim(self, patience: float = PATIENCE, when_overdue: WhenOverdue = "kill") -> None:
        """Takes the block back, see ``reclaim_block``."""
        self._lender.reclaim([self], patience, when_overdue)

    def __enter__(self) -> Grant:
        return self

    def __exit__(self, *_: object) -> None:
        if self.state != "free":
            self.reclaim()

    def __reduce__(self) -> Any:
        raise TypeError("a grant is of use only in the process that lends")
