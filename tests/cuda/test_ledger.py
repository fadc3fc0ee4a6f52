"""The ledger of lent blocks: against a plain reference, after deaths, and damaged."""

import os
import struct
import subprocess
import sys
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fusionloader import _native
from fusionloader._native import cuda, testing
from fusionloader.system.gpu_memory.errors import (
    GrantError,
    LedgerError,
    MemorySharingError,
    PeerError,
)
from fusionloader.system.limits import anonymous_memory

HANDLE, UUID = bytes(range(64)), bytes(range(16))


def lender_ledger(slots):
    fd = anonymous_memory.create("ledger", cuda.Lender.ledger_bytes(slots))
    try:
        return testing.LenderLedger(fd, slots)
    finally:
        os.close(fd)


def arm(lender, nbytes=4096, offset=512):
    return lender.arm(HANDLE, UUID, 1 << 30, offset, nbytes)


def lend(lender, nbytes=4096):
    ticket = arm(lender, nbytes)
    lender.publish(ticket)
    return ticket


@pytest.fixture
def lender():
    return lender_ledger(4)


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
    def the_ledger_is_as_the_loans_are(self):
        if not hasattr(self, "loans"):
            return
        me = os.getpid()
        for loan in self.loans.values():
            assert self.lender.state(loan.ticket) is cuda.LoanState[loan.state.upper()]
            owner = self.lender.owner(loan.ticket)
            assert (owner and cuda.pid_of(owner)) == (me if loan.state in HELD else 0)
        for who, borrower in enumerate(self.borrowers):
            held = [a for a in self.loans.values() if a.owner == who and a.state in HELD]
            asked = [loan.state != "borrowed" for loan in held]
            assert borrower.any_revoked() == any(asked)
            assert [borrower.is_revoked(loan.ticket) for loan in held] == asked
        assert self.lender.wanted_bytes == sum(self.wanted)
        assert self.lender.borrowed_ever == self.borrowed_ever


LedgerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerMachine = LedgerMachine.TestCase


# ---- what the death of a borrower leaves --------------------------------------------------------

CHILD = """
import sys
from fusionloader._native import testing
borrower = testing.BorrowerLedger(int(sys.argv[1]))
borrower.want(100)
print(borrower.borrow(1) is not None, flush=True)
sys.stdin.read()
"""


def test_a_block_comes_back_when_its_borrower_has_ended(lender):
    ticket = lend(lender)
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(lender.fd)],
        pass_fds=[lender.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "True\n"
        assert cuda.pid_of(lender.owner(ticket)) == process.pid
        assert lender.wanted_bytes == 100
        assert not lender.revoke(ticket)
        assert not lender.take_back(ticket)
        (identity,) = lender.borrowers
        assert cuda.kill_child(identity)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped yet
        assert cuda.ended(identity)
        assert cuda.kill_child(identity), "one that has ended counts as killed"
        lender.empty_borrower_slots()
        assert len(lender.borrowers) == 1, "the borrower slot of a block that is out was emptied"
        assert lender.take_back(ticket)
        lender.empty_borrower_slots()
        assert lender.borrowers == []
        assert lender.wanted_bytes == 0
    finally:
        process.kill()
        process.communicate()


def test_a_process_whose_first_thread_has_ended_still_lives():
    program = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        identity = _native.process_identity(process.pid)
        process.stdout.readline()
        while _native.process_identity(process.pid):
            os.sched_yield()
        assert not cuda.ended(identity)
    finally:
        process.kill()
        process.communicate()
    assert cuda.ended(identity)


# ---- what is refused ----------------------------------------------------------------------------


def test_a_forged_ticket_is_refused(lender):
    lend(lender)
    borrower = testing.BorrowerLedger(lender.fd)
    for forged in (cuda.Ticket(99, 1), cuda.Ticket(0, 2), cuda.Ticket(0, 2**48 + 1)):
        for call in (lender.revoke, lender.take_back, lender.quarantine, borrower.give_back):
            with pytest.raises(GrantError):
                call(forged)


def test_what_is_no_ledger_is_refused(tmp_path, lender):
    with open(tmp_path / "file", "w+b") as file:
        file.write(bytes(8192))
        file.flush()
        with pytest.raises(LedgerError, match="not that of a ledger"):
            testing.BorrowerLedger(file.fileno())
    with pytest.raises(LedgerError, match="not that of a ledger"):
        testing.BorrowerLedger(-1)
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.write(unsealed, os.pread(lender.fd, 1 << 20, 0))
    with pytest.raises(LedgerError, match="not that of a ledger"):
        testing.BorrowerLedger(unsealed)
    os.close(unsealed)
    os.pwrite(lender.fd, b"FLedger0", 0)  # another version
    with pytest.raises(LedgerError, match="not that of a ledger"):
        testing.BorrowerLedger(lender.fd)


def test_no_process_can_cut_a_ledger_short(lender):
    with pytest.raises(PermissionError):
        os.ftruncate(lender.fd, 0)


def test_eight_processes_can_borrow_at_a_time_and_one_with_a_block_keeps_its_slot(lender):
    lend(lender)
    borrowers = [testing.BorrowerLedger(lender.fd) for _ in range(8)]
    with pytest.raises(LedgerError, match="all 8 borrower slots"):
        testing.BorrowerLedger(lender.fd)
    ticket = borrowers[-1].borrow(1).ticket
    with pytest.raises(GrantError, match="was not returned"):
        borrowers[-1].leave()
    borrowers[-1].give_back(ticket)
    borrowers.pop().leave()
    assert len(lender.borrowers) == 7
    testing.BorrowerLedger(lender.fd)


def test_a_forked_child_cannot_use_its_parents_end(lender):
    ticket = lend(lender)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            lender.revoke(ticket)
        except LedgerError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    assert b"not to its forked child" in os.read(reading, 4096)
    os.close(reading)
    assert lender.state(ticket) is cuda.LoanState.YIELDED


def test_a_borrower_of_another_user_is_told_so(lender):
    # The user's number in the header, by which the lender is known.
    head = os.pread(lender.fd, 12, 0)
    os.pwrite(lender.fd, (os.geteuid() + 1).to_bytes(4, "little"), len(head) - 4)
    with pytest.raises(PeerError, match=f"user {os.geteuid() + 1}"):
        testing.BorrowerLedger(lender.fd)


def test_a_block_on_offer_that_names_a_borrower_blocks_no_borrower(lender):
    borrower = testing.BorrowerLedger(lender.fd)
    lend(lender)
    size, yielded = os.fstat(lender.fd).st_size, 2
    on_offer = struct.pack("<BBHI", yielded, 0xFF, 1, 0)  # by no borrower, the first loan
    place = os.pread(lender.fd, size, 0).index(on_offer)
    os.pwrite(lender.fd, b"\x05", place + 1)
    assert borrower.borrow(1) is not None
    assert borrower.borrow(1) is None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=16)), max_size=20))
def test_a_damaged_ledger_crashes_no_process(damage):
    lender = lender_ledger(4)
    borrower = testing.BorrowerLedger(lender.fd)
    tickets = [lend(lender) for _ in range(3)]
    borrowed = borrower.borrow(1).ticket
    size = os.fstat(lender.fd).st_size
    for place, data in damage:
        os.pwrite(lender.fd, data[: size - place % size], place % size)
    calls = [lambda: testing.BorrowerLedger(lender.fd), lambda: borrower.borrow(1)]
    calls += [borrower.any_revoked, lambda: borrower.want(5), lender.empty_borrower_slots]
    calls += [lambda: lender.wanted_bytes, lambda: lender.borrowers]
    for ticket in (*tickets, borrowed):
        for call in (
            lender.revoke,
            lender.quarantine,
            lender.owner,
            lender.take_back,
            borrower.is_revoked,
            borrower.give_back,
            lender.publish,
        ):
            calls.append(lambda call=call, ticket=ticket: call(ticket))
    for call in calls:
        try:
            call()
        except MemorySharingError as error:
            assert str(error)
