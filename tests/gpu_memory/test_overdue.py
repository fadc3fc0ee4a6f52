"""Borrowers that do not return a block in time: killed, waited for, or quarantined."""

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.waiting import PATIENCE

from fusionloader._native import cuda
from fusionloader.system.gpu_memory import (
    Block,
    Borrower,
    GrantError,
    LedgerHandle,
    NotReturnedError,
    PeerError,
)
from fusionloader.system.gpu_memory.lender import under_mps

MIB = 1 << 20
LENDERS, BORROWERS = 0x22222222, 0x33333333


@pytest.fixture
def block(fake_cuda):
    return Block(fake_cuda.allocate(MIB), MIB)


@pytest.fixture(autouse=True)
def without_mps(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))


def assert_it_stays_the_lenders(fake_cuda, block):
    """The lender's own work on a block it has back: no other process writes into it."""
    fake_cuda.fill(block.address, LENDERS, MIB)
    fake_cuda.wait(0)
    for _ in range(50):
        assert fake_cuda.words(block.address, MIB) == {LENDERS}


def test_an_overdue_child_is_killed_and_its_block_taken_back(fake_cuda, lender, borrower, block):
    grant = lender.yield_block(block)
    borrower.borrow(MIB)
    borrower.fill(BORROWERS, 1_000_000)
    grant.reclaim(0.01)
    assert grant.state == "free"
    assert_it_stays_the_lenders(fake_cuda, block)
    assert borrower.process.wait(PATIENCE) == -signal.SIGKILL
    stats = lender.stats()
    assert (stats.killed, stats.revoked_ever, stats.lent) == (1, MIB, 0)
    assert lender.borrowers == []


def test_all_blocks_of_an_overdue_child_come_back_at_once(fake_cuda, lender, start_borrower):
    blocks = [Block(fake_cuda.allocate(MIB), MIB) for _ in range(4)]
    grants = [lender.yield_block(block) for block in blocks]
    overdue, responsive = start_borrower(), start_borrower()
    for _ in range(2):
        overdue.borrow(MIB)
    responsive.borrow(MIB)
    responsive.tell("return_when_asked")
    with pytest.raises(NotReturnedError):
        lender.reclaim(grants, 0.01, "quarantine")
    responsive.answer()  # it was asked as the other one was, and takes its time
    lender.reclaim([grant for grant in grants if grant.state != "free"], 0.01)
    assert lender.stats().killed == 1
    assert lender.borrowers == [responsive.pid]


def test_waiting_takes_as_long_as_it_takes(lender, borrower, block):
    grant = lender.yield_block(block)
    borrower.borrow(MIB)
    reclaiming = threading.Thread(target=grant.reclaim, args=(0, "wait"))
    reclaiming.start()
    reclaiming.join(0.2)
    assert reclaiming.is_alive()
    borrower.give_back()
    reclaiming.join(PATIENCE)
    assert not reclaiming.is_alive()
    assert grant.state == "free"


def test_a_quarantined_block_stays_out_until_it_is_returned(lender, borrower, block):
    grant = lender.yield_block(block)
    borrower.borrow(MIB)
    for _ in range(2):
        with pytest.raises(NotReturnedError, match="must not be used") as raised:
            grant.reclaim(0.01, "quarantine")
        assert raised.value.nbytes == MIB
        assert grant.state == "quarantined"
    with pytest.raises(GrantError, match="are lent already"):
        lender.yield_block(block)
    assert borrower.revoked() == (True, True)
    borrower.give_back()
    grant.reclaim(0)
    stats = lender.stats()
    assert (stats.lent, stats.revoked_ever, stats.killed) == (0, MIB, 0)


def test_under_mps_no_borrower_is_killed(lender, borrower, block, tmp_path):
    assert not under_mps()
    (tmp_path / "control").touch()
    grant = lender.yield_block(block)
    borrower.borrow(MIB)
    with pytest.raises(NotReturnedError):
        grant.reclaim(0.01, "kill")
    assert borrower.process.poll() is None
    borrower.give_back()
    grant.reclaim()


GRANDPARENT = """
import subprocess, sys
program, fd = sys.argv[1:]
child = subprocess.Popen([sys.executable, "-c", program, fd], pass_fds=[int(fd)])
print(child.pid, flush=True)
child.wait()
"""
GRANDCHILD = """
import sys
from fusionloader.system.gpu_memory import Borrower, LedgerHandle
borrower = Borrower(LedgerHandle(int(sys.argv[1])))
mapping = borrower.borrow_block(1, timeout=60)
print("borrowed", flush=True)
sys.stdin.read()
mapping.return_()
borrower.close()
"""


def test_a_process_that_is_no_child_is_not_killed(lender, block):
    grant = lender.yield_block(block)
    ledger_handle = lender.ledger_handle()
    between = subprocess.Popen(
        [sys.executable, "-c", GRANDPARENT, GRANDCHILD, str(ledger_handle.fd)],
        pass_fds=[ledger_handle.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = {between.stdout.readline(), between.stdout.readline()}
        assert "borrowed\n" in lines
        with pytest.raises(NotReturnedError):
            grant.reclaim(0.01, "kill")
        assert grant.state == "quarantined"
        assert lender.stats().killed == 0
        between.stdin.close()
        grant.reclaim(PATIENCE, "quarantine")
        assert between.wait(PATIENCE) == 0
    finally:
        between.kill()
        between.wait()
        between.stdout.close()


def test_a_lender_that_cannot_close_stays_open(lender, borrower, block):
    grant = lender.yield_block(block)
    borrower.borrow(MIB)
    with pytest.raises(NotReturnedError):
        lender.close(0.01, "quarantine")
    borrower.give_back()
    lender.close()
    assert grant.state == "free"


LENDING = """
import os, socket, sys
sys.path[:0] = sys.argv[2:]
from support.fake_cuda import FakeCuda
from fusionloader.system.gpu_memory import Block, Lender
fake, lender = FakeCuda(os.environ["FUSIONLOADER_LIBCUDA"]), Lender()
address = fake.allocate(1 << 20)
fake.fill(address, 0x22222222, 1 << 20)
lender.yield_block(Block(address, 1 << 20))
channel, ledger_handle = socket.socket(fileno=int(sys.argv[1])), lender.ledger_handle()
socket.send_fds(channel, [b"x"], [ledger_handle.fd])
sys.stdin.read()
"""


def test_what_was_borrowed_outlives_a_lender_that_is_killed(fake_cuda):
    ours, theirs = socket.socketpair()
    folder = str(Path(__file__).parents[1])
    lending = subprocess.Popen(
        [sys.executable, "-c", LENDING, str(theirs.fileno()), folder],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,
    )
    try:
        ours.settimeout(PATIENCE)
        (fd,) = socket.recv_fds(ours, 1, 1)[1]
        ledger_handle = LedgerHandle(fd)
        with Borrower(ledger_handle) as borrower:
            mapping = borrower.borrow_block(MIB, PATIENCE)
            assert borrower.lender_lives
            lending.kill()
            lending.wait(PATIENCE)
            assert not borrower.lender_lives
            assert set(memoryview(cuda.read(0, mapping.address, MIB)).cast("I")) == {LENDERS}
            with pytest.raises(PeerError, match="the lender has ended"):
                borrower.borrow_block(MIB, PATIENCE)
            mapping.return_()
        with pytest.raises(PeerError, match="the lender's process has ended"):
            Borrower(ledger_handle)
    finally:
        lending.kill()
        lending.communicate()
        ours.close()
        theirs.close()
