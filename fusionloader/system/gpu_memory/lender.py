"""The process that owns GPU memory, lends blocks of it, and reclaims them."""

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
"""Default seconds for a borrower to return a revoked block.

Memory should be back within 50 ms; the rest is for a killed borrower to end."""

WhenOverdue = Literal["kill", "wait", "quarantine"]
"""What to do if a borrower does not return a block in time.

``"kill"``: a borrower that is a child of this process is killed, and the block is taken back once
none of its work runs. If it is no child, or shares its CUDA context with other processes under MPS,
it is treated as with ``"quarantine"``. ``"wait"``: wait without limit. ``"quarantine"``: raise
``NotReturnedError``; the block can be reclaimed later."""

_MOST_SLOTS = 4096
# A killed process ends after its system calls; one that is stuck in the kernel may never end.
_ENDING_SECONDS = 10.0
# Interval of checks whether borrowers live, because no futex wakes for that. Killed ones end soon.
_LOOKING_SECONDS = 0.005
_LOOKING_AFTER_A_KILL_SECONDS = 0.0005

open_lenders: weakref.WeakSet[Lender] = weakref.WeakSet()
_opening = threading.Lock()  # a set must not change while another thread iterates over it


@dataclass(frozen=True, slots=True)
class LendingStats:
    """Counters of one lender.

    Attributes:
        lent: bytes lent now.
        borrowed: bytes lent now that a borrower has.
        lent_ever: bytes of all grants so far.
        borrowed_ever: bytes of all mappings so far.
        revoked_ever: bytes that were reclaimed while a borrower had them.
        killed: number of borrowers that were killed because they did not return a block in time.
    """

    lent: int
    borrowed: int
    lent_ever: int
    borrowed_ever: int
    revoked_ever: int
    killed: int


class Grant:
    """A block that is lent, made by a ``Lender``.

    As a context manager, it reclaims the block at the end.

    Attributes:
        block: the block.
    """

    __slots__ = ("__weakref__", "_lender", "_ticket", "block")

    def __init__(self, lender: Lender, block: Block, ticket: native.Ticket) -> None:
        self._lender = lender
        self._ticket = ticket
        self.block: Block = block

    @property
    def state(self) -> str:
        """State of the block.

        ``"armed"`` (its stream must first reach the point of the offer), ``"yielded"``,
        ``"borrowed"``, ``"revoking"``, ``"quarantined"``, ``"returned"``, or ``"free"`` once it is
        reclaimed.
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
    """Lends blocks of GPU memory to up to 8 processes, through a ledger in shared memory.

    The ledger is freed with the last process that uses it. A lender belongs to the process that
    made it, not to its forked children. As a context manager, it reclaims everything at the end.

    Args:
        slots: maximum number of blocks lent at a time, from 1 to 4096.

    Raises:
        SizeError: ``slots`` is out of range.
        LedgerError: there is too little memory for the ledger.
        UnavailableError: there is no CUDA driver.
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
        """Returns the handle that a process needs to borrow, to be passed as an argument."""
        self._require_open()
        self._native.empty_borrower_slots()
        return LedgerHandle(os.dup(self._native.fd))

    @property
    def wanted_bytes(self) -> int:
        """Bytes that borrowers want and do not have. One atomic load if there are none."""
        return self._native.wanted_bytes

    @property
    def borrowers(self) -> list[int]:
        """Process ids of the borrowers."""
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
        for other in others:  # the ledger itself refuses overlaps within this lender
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
        """Takes several blocks back, see ``reclaim_block``. All are revoked before it waits."""
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
        """Returns the grants that borrowers still have; forgets the others."""
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
        """Waits for revoked blocks; returns the grants that borrowers still have."""
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
        """Kills the borrowers of the blocks; returns whether it makes sense to wait for them."""
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
        """Returns the counters of this lender."""
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
        """Reclaims everything and ends lending.

        Raises:
            NotReturnedError: a block was not returned. The lender stays open.
        """
        if self._closed:
            return
        self.reclaim(list(self._out.values()), patience, when_overdue)
        self._native.close()
        self._closed = True
        with _opening:
            open_lenders.discard(self)

    def _refuse_overlap(self, block: Block) -> None:
        for grant in list(self._out.values()):  # a copy: another thread may change it
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
    """Returns whether CUDA's Multi-Process Service runs.

    Its clients share one context on the device, so killing one may end the others.
    """
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - CUDA's
    return Path(pipes, "control").exists()
