"""The probe: whether memory can be shared here, said in words."""

import threading

import pytest
from support.waiting import PATIENCE

from fusionloader._native import cuda
from fusionloader.system.gpu_memory import Block, NotOfferedError, probe

MIB = 1 << 20


def run_both(lender, borrower):
    borrower.tell("probe")
    ours = probe(lender, timeout=PATIENCE)
    return ours, borrower.answer()


def test_handles_that_cannot_be_opened_are_told_in_words_of_cuda(fake_cuda, lender, start_borrower):
    ours, theirs = run_both(lender, start_borrower(FAKE_CUDA_NO_IPC="1"))
    assert "cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_CONTEXT (201)" in theirs
    assert "could not write into the block" in ours


def test_no_borrower_is_a_reason(fake_cuda, lender, borrower):
    assert "no process has taken and returned a block within 0.05 s" in probe(lender, timeout=0.05)


def test_no_lender_is_a_reason(borrower):
    assert "the lender has offered no block within 0.05 s" in borrower.probe(0.05)


def test_no_memory_is_a_reason(fake_cuda, lender, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_MIB", "1")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in probe(lender)


def test_a_probe_and_other_loans_do_not_meet(fake_cuda, lender, borrower):
    probing = threading.Thread(target=probe, args=(lender, 0, PATIENCE))
    probing.start()
    with lender.yield_block(Block(fake_cuda.allocate(4 * MIB), 4 * MIB)):
        assert borrower.probe() is None
    probing.join(PATIENCE)
    with pytest.raises(NotOfferedError):
        borrower.borrow(1, 0)


def test_a_probe_leaves_nothing_allocated(fake_cuda, lender, borrower, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_MIB", str(-(-fake_cuda.in_use // MIB) + 3))
    for _ in range(3):
        assert run_both(lender, borrower) == (None, None)
    cuda.free(0, cuda.allocate(0, 3 * MIB))


def test_a_borrower_that_dies_in_the_probe_is_a_reason(fake_cuda, lender, start_borrower):
    remote = start_borrower(FAKE_CUDA_DIES_OPENING="1")
    remote.tell("probe")
    while remote.process.poll() is None:  # it may not have come to the block of the first probe
        assert "no process has taken and returned" in probe(lender, timeout=0.5)
    assert remote.process.returncode == -6
