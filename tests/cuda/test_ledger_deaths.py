"""What the death of a borrower leaves in the ledger, and who may be killed."""

import os
import signal
import subprocess
import sys

import pytest
from ledger_loans import lend, lender_ledger
from support.waiting import PATIENCE

from fusionloader import _native
from fusionloader._native import cuda

CHILD = """
import sys
from fusionloader._native import testing
borrower = testing.BorrowerLedger(int(sys.argv[1]))
borrower.want(100)
print(borrower.borrow(1) is not None, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lender():
    return lender_ledger(4)


@pytest.fixture
def child():
    """Starts a process that borrows one block and keeps it."""
    started = []

    def start(lender):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(lender.fd)],
            pass_fds=[lender.fd],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "True\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_block_comes_back_when_its_borrower_has_ended(lender, child):
    ticket = lend(lender)
    process = child(lender)
    assert cuda.pid_of(lender.owner(ticket)) == process.pid
    assert lender.wanted_bytes == 100
    assert not lender.revoke(ticket)
    assert not lender.take_back(ticket)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped yet
    lender.empty_borrower_slots()
    assert len(lender.borrowers) == 1, "the borrower slot of a block that is out was emptied"
    assert lender.take_back(ticket)
    lender.empty_borrower_slots()
    assert lender.borrowers == []
    assert lender.wanted_bytes == 0


def test_a_stopped_borrower_keeps_its_block(lender, child):
    ticket = lend(lender)
    process = child(lender)
    process.send_signal(signal.SIGSTOP)
    assert not lender.revoke(ticket)
    assert not lender.take_back(ticket)
    assert lender.quarantine(ticket)
    assert not lender.take_back(ticket)


def test_only_a_child_is_killed(lender, child):
    lend(lender)
    process = child(lender)
    (identity,) = lender.borrowers
    assert cuda.kill_child(identity)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    assert cuda.ended(identity)
    assert cuda.kill_child(identity), "one that has ended counts as killed"


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
