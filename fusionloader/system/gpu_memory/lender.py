"""The process that owns GPU memory, lends blocks of it, and always gets them back."""

from __future__ import annotations

import logging
import math
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, get_args

from fusionloader._native import cuda as native
from fusionloader.system.gpu_memory.block import Block, CudaArray, as_block
from fusionloader.system.gpu_memory.borrower import LedgerHandle
from fusionloader.system.gpu_memory.errors import (
    GrantError,
    LedgerError,
    NotReturnedError,
    SizeError,
)
from fusionloader.system.limits import anonymous_memory

log = logging.getLogger("fusionloader.gpu_memory")

PATIENCE = 0.03
"""Seconds that a borrower has, unless said otherwise, to return what is asked back.

Of the 50 ms in which memory is to be back, the rest is for a killed borrower to end."""

WhenOverdue = Literal["kill", "wait", "quarantine"]
"""What to do with a borrower that does not return a block in time.

``"kill"``: if it is a child of this process it is killed, and the block taken back when nothing of
it runs any more; if it is not, or shares its CUDA context with others under MPS, the block stays
out. ``"wait"``: as long as it takes. ``"quarantine"``: the block stays out, which is a
``NotReturnedError``; it can be reclaimed again later."""

_MOST_SLOTS = 4096
# A killed process ends when its system calls do; one that is stuck in the kernel may never.
_ENDING_SECONDS = 10.0
# Between two looks whether borrowers live: no futex wakes for that. A killed process ends soon.
_LOOKING_SECONDS = 0.005
_LOOKING_AFTER_A_KILL_SECONDS = 0.0005

open_lenders: weakref.WeakSet[Lender] = weakref.WeakSet()
_opening = threading.Lock()  # a set must not change while another thread iterates over it


@dataclass(frozen=True, slots=True)
class LendingStats:
    """Of one lender, in bytes where not said otherwise.

    Attributes:
        lent: with grants that are not reclaimed, now.
        borrowed: of these, with a borrower now.
        lent_ever: of all grants so far.
        borrowed_ever: of all mappings so far.
        revoked_ever: asked back while a borrower had it.
        killed: borrowers that were killed because they did not return a block in time.
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
        self.block: Block = block

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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a grant is of use only in the process that lends")


class Lender:
    """One end of a ledger; up to 8 processes at a time borrow from it.

    Nothing of it outlives the processes that use it. It belongs to the process that made it, not to
    a forked child. As a context manager it reclaims everything at the end.

    Args:
        slots: how many blocks can be lent at a time, from 1 to 4096.

    Raises:
        SizeError: ``slots`` is out of range.
        LedgerError: there is no memory for the ledger.
        UnavailableError: there is no CUDA driver here.
    """

    def __init__(self, slots: int = 64) -> None:
        slots = operator.index(slots)
        if not 1 <= slots <= _MOST_SLOTS:
            raise SizeError(f"a ledger has 1 to {_MOST_SLOTS} slots, not {slots}")
        try:
            fd = anonymous_memory.create("ledger", native.Lender.ledger_bytes(slots))
        except OSError as error:
            raise LedgerError(f"the ledger cannot be made: {error}") from error
        try:
            self._native = native.Lender(fd, slots)
        finally:
            os.close(fd)
        self._out: dict[int, Grant] = {}
        self._lent_ever = 0
        self._revoked_ever = 0
        self._killed = 0
        self._closed = False
        with _opening:
            open_lenders.add(self)

    def ledger_handle(self) -> LedgerHandle:
        """Returns what a process needs to borrow, as an argument for it."""
        self._require_open()
        self._native.empty_borrower_slots()
        return LedgerHandle(os.dup(self._native.fd))

    @property
    def wanted_bytes(self) -> int:
        """What borrowers want and do not have, in bytes; one atomic load when it is nothing."""
        return self._native.wanted_bytes

    @property
    def borrowers(self) -> list[int]:
        """Process ids of those that have a borrower slot."""
        self._native.empty_borrower_slots()
        return [native.pid_of(identity) for identity in self._native.borrowers]

    def yield_block(self, block: Block | CudaArray) -> Grant:
        """Lends a block, see ``yield_block``."""
        self._require_open()
        return self._lend(as_block(block), probe=False)

    def _lend(self, block: Block, *, probe: bool) -> Grant:
        self._native.empty_borrower_slots()
        with _opening:
            others = [lender for lender in open_lenders if lender is not self]
        for other in others:  # the ledger refuses overlaps of its own
            other._refuse_overlap(block)
        ticket = self._native.lend(block.address, block.nbytes, block.stream, probe)
        grant = Grant(self, block, ticket)
        self._out[id(grant)] = grant
        self._lent_ever += block.nbytes
        return grant

    def reclaim(
        self,
        grants: Iterable[Grant],
        patience: float = PATIENCE,
        when_overdue: WhenOverdue = "kill",
    ) -> None:
        """Takes several blocks back at once, see ``reclaim_block``; all are asked for first."""
        if when_overdue not in get_args(WhenOverdue):
            choices = get_args(WhenOverdue)
            raise ValueError(f"when_overdue should be one of {choices}, not {when_overdue!r}")
        if not patience >= 0:
            raise ValueError(f"patience is a number of seconds from 0 on, not {patience!r}")
        asked = list(dict.fromkeys(grants))
        for grant in asked:
            if not isinstance(grant, Grant) or self._out.get(id(grant)) is not grant:
                raise GrantError(
                    f"{grant!r} is no grant of this lender, or it was reclaimed already"
                )
        self._revoked_ever += sum(g.block.nbytes for g in asked if g.state == "borrowed")
        freed: list[Grant] = []
        out = self._back(asked, self._native.revoke, freed)
        out = self._wait(out, patience, freed)
        if out and when_overdue == "wait":
            out = self._wait(out, math.inf, freed)
        if out and when_overdue == "kill" and self._kill_owners(out):
            out = self._wait(out, _ENDING_SECONDS, freed, _LOOKING_AFTER_A_KILL_SECONDS)
        self._native.empty_borrower_slots()
        if out:
            self._leave_out(out)
        if freed:
            raise GrantError(f"{len(freed)} of the blocks were freed while they were lent")

    def _back(
        self,
        grants: list[Grant],
        look: Callable[[native.Ticket], native.Outcome],
        freed: list[Grant],
    ) -> list[Grant]:
        """Returns those that are still out; forgets the others."""
        out = []
        for grant in grants:
            outcome = look(grant._ticket)
            if outcome is native.Outcome.OUT:
                out.append(grant)
                continue
            self._out.pop(id(grant), None)
            if outcome is native.Outcome.FREED:
                freed.append(grant)
        return out

    def _wait(
        self,
        out: list[Grant],
        seconds: float,
        freed: list[Grant],
        looking: float = _LOOKING_SECONDS,
    ) -> list[Grant]:
        """Waits for what is asked back; returns what is still out."""
        deadline = time.monotonic() + seconds
        while out:
            seen = self._native.change_count
            out = self._back(out, self._native.take_back, freed)
            left = deadline - time.monotonic()
            if not out or left <= 0:
                break
            self._native.wait(seen, min(left, looking))
        return out

    def _kill_owners(self, out: list[Grant]) -> bool:
        """Kills the processes that have the blocks; returns whether any was killed."""
        if under_mps():
            log.warning("a borrower keeps its block, and is not killed since CUDA's MPS runs here")
            return False
        owners = {self._native.owner(grant._ticket) for grant in out} - {0}
        killed = 0
        for owner in owners:
            pid = native.pid_of(owner)
            if native.kill_child(owner):
                log.warning("process %d was killed: it did not return borrowed GPU memory", pid)
                killed += 1
            else:
                log.warning("process %d keeps its block, and is not killed: it is no child", pid)
        self._killed += killed
        return killed > 0 or not owners

    def _leave_out(self, out: list[Grant]) -> None:
        for grant in out:
            self._native.quarantine(grant._ticket)
        nbytes = sum(grant.block.nbytes for grant in out)
        raise NotReturnedError(
            f"{nbytes} bytes of GPU memory were asked back and are with their borrower still; they "
            "must not be used until they can be reclaimed",
            nbytes,
        )

    def stats(self) -> LendingStats:
        """Returns what was lent, borrowed and revoked."""
        out = list(self._out.values())
        with_borrowers = ("borrowed", "revoking", "quarantined")
        return LendingStats(
            lent=sum(grant.block.nbytes for grant in out),
            borrowed=sum(grant.block.nbytes for grant in out if grant.state in with_borrowers),
            lent_ever=self._lent_ever,
            borrowed_ever=self._native.borrowed_ever,
            revoked_ever=self._revoked_ever,
            killed=self._killed,
        )

    def close(self, patience: float = PATIENCE, when_overdue: WhenOverdue = "kill") -> None:
        """Reclaims everything and ends lending; borrowers find nothing on offer any more.

        Raises:
            NotReturnedError: a block did not come back. The lender stays open.
        """
        if self._closed:
            return
        self.reclaim(list(self._out.values()), patience, when_overdue)
        self._native.close()
        self._closed = True
        with _opening:
            open_lenders.discard(self)

    def _refuse_overlap(self, block: Block) -> None:
        for grant in list(self._out.values()):  # at once: it may be another thread's
            first, second = sorted((grant.block, block), key=lambda part: part.address)
            if first.address + first.nbytes > second.address:
                raise GrantError(
                    f"{block.nbytes} bytes at {block.address:#x} are lent already, by another "
                    "lender of this process"
                )

    def _require_open(self) -> None:
        if self._closed:
            raise LedgerError("the lender is closed")

    def __enter__(self) -> Lender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _state(self, grant: Grant) -> str:
        if self._out.get(id(grant)) is not grant:
            return "free"
        return self._native.state(grant._ticket).name.lower()


def under_mps() -> bool:
    """Returns whether CUDA's Multi-Process Service runs here.

    Its clients share one context on the device: killing one of them may take the others with it.
    """
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - CUDA's
    return Path(pipes, "control").exists()
