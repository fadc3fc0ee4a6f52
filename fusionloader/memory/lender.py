"""The process that owns GPU memory, lends blocks of it, and always gets them back."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fusionloader._native import cuda as native
from fusionloader.memory.block import Block, as_block
from fusionloader.memory.errors import GrantError, NotReturnedError
from fusionloader.memory.invitation import Invitation
from fusionloader.memory.late import WhenLate, check_when_late, under_mps

log = logging.getLogger("fusionloader.memory")

PATIENCE = 0.05
"""Seconds that a borrower has, unless said otherwise, to return what is asked back."""

# A killed process ends when its system calls do; one that is stuck in the kernel may never.
_ENDING_SECONDS = 10.0
# How often it is looked whether borrowers live: no futex tells.
_LOOKING_SECONDS = 0.005

open_lenders: weakref.WeakSet[Lender] = weakref.WeakSet()


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

    def reclaim(self, patience: float = PATIENCE, when_late: WhenLate = "kill") -> None:
        """Takes the block back, see ``reclaim_block``."""
        self._lender.reclaim([self], patience, when_late)

    def __enter__(self) -> Grant:
        return self

    def __exit__(self, *_: object) -> None:
        if self.state != "free":
            self.reclaim()

    def __reduce__(self) -> Any:
        raise TypeError("a grant is of use only in the process that lends")


class Lender:
    """One end of a ledger; up to 8 processes at a time borrow from it.

    Nothing of it outlives the processes that use it. It belongs to the process that made it, not to
    a forked child. As a context manager it reclaims everything at the end.

    Args:
        slots: how many blocks can be lent at a time, up to 4096.

    Raises:
        ValueError: not so many.
        UnavailableError: there is no CUDA driver here.
    """

    def __init__(self, slots: int = 64) -> None:
        self._native = native.Lender(slots)
        self._out: dict[int, Grant] = {}
        self._lent_ever = 0
        self._revoked_ever = 0
        self._killed = 0
        open_lenders.add(self)

    def invitation(self) -> Invitation:
        """Returns what a process needs to borrow, as an argument for it."""
        raise NotImplementedError

    @property
    def wanted_bytes(self) -> int:
        """What borrowers want and do not have, in bytes; one atomic load when it is nothing."""
        raise NotImplementedError

    @property
    def borrowers(self) -> list[int]:
        """Process ids of those that have a seat."""
        raise NotImplementedError

    def yield_block(self, memory: Any) -> Grant:
        """Lends a block, see ``yield_block``."""
        raise NotImplementedError

    def reclaim(
        self,
        grants: Iterable[Grant],
        patience: float = PATIENCE,
        when_late: WhenLate = "kill",
    ) -> None:
        """Takes several blocks back at once, see ``reclaim_block``; all are asked for first."""
        raise NotImplementedError

    def stats(self) -> LendingStats:
        """Returns what was lent, borrowed and revoked."""
        raise NotImplementedError

    def close(self, patience: float = PATIENCE, when_late: WhenLate = "kill") -> None:
        """Reclaims everything and ends lending; borrowers find nothing on offer any more.

        Raises:
            NotReturnedError: a block did not come back. The lender stays open.
        """
        raise NotImplementedError

    def __enter__(self) -> Lender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _state(self, grant: Grant) -> str:
        raise NotImplementedError
