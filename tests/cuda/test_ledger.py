"""The ledger of lent blocks against a plain reference."""

import os
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_loans import HANDLE, arm, lender_ledger

from fusionloader._native import cuda, testing
from fusionloader.system.gpu_memory.errors import GrantError, LedgerError

SLOTS = 3
HELD = ("borrowed", "revoking", "quarantined")


@dataclass
class Loan:
    ticket: cuda.Ticket
    nbytes: int
    state: str = "armed"
    owner: int | None = None


class LedgerMachine(RuleBasedStateMachine):
    """One process plays the lender and two borrowers; ``loans`` is what should be."""

    slots = st.integers(0, SLOTS - 1)
    sizes = st.integers(1, 5)
    who = st.integers(0, 1)

    @initialize()
    def begin(self):
        self.lender = lender_ledger(SLOTS)
        self.borrowers = [testing.BorrowerLedger(self.lender.fd) for _ in range(2)]
        self.loans = {}
        self.stale = []
        self.wanted = [0, 0]
        self.borrowed_ever = 0

    def end(self, slot):
        self.stale.append(self.loans.pop(slot).ticket)

    @rule(nbytes=sizes)
    def arm(self, nbytes):
        free = [slot for slot in range(SLOTS) if slot not in self.loans]
        if not free:
            with pytest.raises(LedgerError, match="all 3 slots"):
                arm(self.lender, nbytes)
            return
        ticket = arm(self.lender, nbytes)
        assert ticket.record == free[0]
        self.loans[ticket.record] = Loan(ticket, nbytes)

    @precondition(lambda self: self.loans)
    @rule(data=st.data())
    def publish(self, data):
        loan = self.loans[data.draw(st.sampled_from(sorted(self.loans)))]
        self.lender.publish(loan.ticket)
        if loan.state == "armed":
            loan.state = "yielded"

    @rule(who=who, least=sizes)
    def borrow(self, who, least):
        got = self.borrowers[who].borrow(least)
        fit = [a for a in self.loans.values() if a.state == "yielded" and a.nbytes >= least]
        if not fit:
            assert got is None
            return
        loan = self.loans[got.ticket.record]
        assert loan.state == "yielded"
        assert got.nbytes == loan.nbytes == max(a.nbytes for a in fit)
        assert (got.handle, got.offset) == (HANDLE, 512)
        assert got.ticket.generation == loan.ticket.generation
        loan.state, loan.owner = "borrowed", who
        self.borrowed_ever += got.nbytes

    @rule(slot=slots)
    def revoke(self, slot):
        if (loan := self.loans.get(slot)) is None:
            return
        back = self.lender.revoke(loan.ticket)
        assert back == (loan.state in ("armed", "yielded"))
        if back:
            self.end(slot)
        elif loan.state == "borrowed":
            loan.state = "revoking"

    @rule(slot=slots, who=who)
    def give_back(self, slot, who):
        if (loan := self.loans.get(slot)) is None:
            return
        if loan.state in HELD and loan.owner == who:
            self.borrowers[who].give_back(loan.ticket)
            loan.state = "returned"
        else:
            with pytest.raises(GrantError, match="not with this borrower"):
                self.borrowers[who].give_back(loan.ticket)

    @rule(slot=slots)
    def take_back(self, slot):
        if (loan := self.loans.get(slot)) is None:
            return
        back = self.lender.take_back(loan.ticket)
        assert back == (loan.state == "returned")
        if back:
            self.end(slot)

    @rule(slot=slots)
    def quarantine(self, slot):
        if (loan := self.loans.get(slot)) is None:
            return
        out = self.lender.quarantine(loan.ticket)
        assert out == (loan.state in ("revoking", "quarantined"))
        if out:
            loan.state = "quarantined"

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def delayed_calls_of_ended_loans_change_nothing(self, data):
        ticket = data.draw(st.sampled_from(self.stale))
        self.lender.publish(ticket)
        now = self.loans.get(ticket.record)
        if now is None or now.ticket.generation == ticket.generation:
            return
        for call in (
            self.lender.revoke,
            self.lender.take_back,
            self.lender.quarantine,
            self.lender.state,
            self.borrowers[0].give_back,
        ):
            with pytest.raises(GrantError, match="which is at loan"):
                call(ticket)

    @rule(who=who, nbytes=st.integers(0, 3))
    def want(self, who, nbytes):
        self.borrowers[who].want(nbytes)
        self.wanted[who] = nbytes

    @rule()
    def empty_borrower_slots(self):
        self.lender.empty_borrower_slots()
        assert len(self.lender.borrowers) == 2

    @invariant()
    def same(self):
        if not hasattr(self, "loans"):
            return
        me = os.getpid()
        for loan in self.loans.values():
            assert self.lender.state(loan.ticket) is cuda.LoanState[loan.state.upper()]
            owner = self.lender.owner(loan.ticket)
            assert (owner and cuda.pid_of(owner)) == (me if loan.state in HELD else 0)
        for who, borrower in enumerate(self.borrowers):
            asked = [
                loan
                for loan in self.loans.values()
                if loan.owner == who and loan.state in ("revoking", "quarantined")
            ]
            assert borrower.any_revoked() == bool(asked)
            assert all(borrower.is_revoked(loan.ticket) for loan in asked)
        assert self.lender.wanted_bytes == sum(self.wanted)
        assert self.lender.borrowed_ever == self.borrowed_ever


LedgerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLedgerMachine = LedgerMachine.TestCase
