"""What the ledger refuses, and that damage to it crashes no process."""

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_loans import lend, lender_ledger

from fusionloader._native import cuda, testing
from fusionloader.system.gpu_memory.errors import (
    GrantError,
    LedgerError,
    MemorySharingError,
    PeerError,
    SizeError,
)


@pytest.fixture
def lender():
    return lender_ledger(4)


@pytest.mark.parametrize("slots", [0, 4097])
def test_a_ledger_has_a_number_of_slots(slots):
    with pytest.raises(SizeError, match=f"1 to 4096 slots, not {slots}"):
        lender_ledger(slots)


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


def test_a_ledger_of_another_version_is_refused(lender):
    os.pwrite(lender.fd, b"FLedger0", 0)
    with pytest.raises(LedgerError, match="not that of a ledger"):
        testing.BorrowerLedger(lender.fd)


def test_no_process_can_cut_a_ledger_short(lender):
    with pytest.raises(PermissionError):
        os.ftruncate(lender.fd, 0)


def test_eight_processes_can_borrow_at_a_time(lender):
    borrower_slots = [testing.BorrowerLedger(lender.fd) for _ in range(8)]
    with pytest.raises(LedgerError, match="all 8 borrower slots"):
        testing.BorrowerLedger(lender.fd)
    borrower_slots.pop().leave()
    testing.BorrowerLedger(lender.fd)


def test_a_borrower_with_a_block_keeps_its_slot(lender):
    lend(lender)
    borrower = testing.BorrowerLedger(lender.fd)
    ticket = borrower.borrow(1).ticket
    with pytest.raises(GrantError, match="was not returned"):
        borrower.leave()
    borrower.give_back(ticket)
    borrower.leave()
    assert lender.borrowers == []


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
