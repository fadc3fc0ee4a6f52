"""Blocks that are borrowed by another process and come back, over the fake driver."""

import pickle

import pytest
from support.fake_cuda import FakeCuda
from support.memory_peer import Peer
from support.waiting import PATIENCE, wait_until

from fusionloader.system import gpu_memory
from fusionloader.system.gpu_memory import (
    Block,
    LedgerError,
    Lender,
    NotOfferedError,
    reclaim_block,
    yield_block,
)

MIB = 1 << 20
BEFORE, LENDERS, BORROWERS = 0x11111111, 0x22222222, 0x33333333


def test_a_block_in_the_middle_of_an_allocation_goes_to_another_process_and_comes_back(
    fake_cuda, lender, borrower
):
    address = fake_cuda.allocate(3 * MIB)
    fake_cuda.fill(address, LENDERS, 3 * MIB)
    grant = yield_block(Block(address + MIB, MIB), lender)
    assert grant.state == "yielded"
    assert borrower.borrow(1) == MIB
    assert grant.state == "borrowed"
    assert borrower.words() == {LENDERS}
    borrower.fill(BORROWERS)
    borrower.give_back()
    assert grant.state == "returned"
    reclaim_block(grant)
    assert grant.state == "free"
    parts = [fake_cuda.words(address + number * MIB, MIB) for number in range(3)]
    assert parts == [{LENDERS}, {BORROWERS}, {LENDERS}]
    fake_cuda.free(address)  # stops this process if the borrower has it open


def test_blocks_of_one_allocation_are_returned_in_any_order_and_counted(
    fake_cuda, lender, borrower
):
    address = fake_cuda.allocate(3 * MIB)
    grants = [lender.yield_block(Block(address + number * MIB, MIB)) for number in range(3)]
    for value in (BORROWERS, BEFORE):
        borrower.borrow(MIB)
        borrower.fill(value)
    stats = lender.stats()
    assert (stats.lent, stats.borrowed, stats.lent_ever) == (3 * MIB, 2 * MIB, 3 * MIB)
    borrower.give_back(0)
    assert borrower.words() == {BEFORE}
    borrower.give_back(1)
    lender.reclaim(grants, 0)  # one that nobody has borrowed is back at once
    assert {BORROWERS, BEFORE} <= fake_cuda.words(address, 3 * MIB)
    stats = lender.stats()
    assert (stats.lent, stats.borrowed, stats.borrowed_ever) == (0, 0, 2 * MIB)
    assert (stats.revoked_ever, stats.killed) == (0, 0)


def test_a_block_is_on_offer_when_its_stream_is_done_with_it(fake_cuda, lender, borrower):
    address, stream = fake_cuda.allocate(MIB), fake_cuda.stream()
    fake_cuda.hold(stream, True)
    fake_cuda.fill(address, LENDERS, MIB, stream)
    grant = lender.yield_block(Block(address, MIB, stream))
    assert grant.state == "armed"
    with pytest.raises(NotOfferedError):
        borrower.borrow(MIB, 0)
    borrower.tell("borrow", MIB, PATIENCE)
    wait_until(lambda: lender.wanted_bytes == MIB)
    fake_cuda.hold(stream, False)
    assert borrower.answer() == MIB
    assert lender.wanted_bytes == 0
    assert borrower.words() == {LENDERS}
    borrower.give_back()
    grant.reclaim()


def test_without_a_stream_lending_waits_for_all_work(fake_cuda, lender, monkeypatch):
    address, stream = fake_cuda.allocate(MIB), fake_cuda.stream()
    monkeypatch.setenv("FAKE_CUDA_WORK_US", "100000")
    fake_cuda.fill(address, LENDERS, MIB, stream)
    with lender.yield_block(Block(address, MIB)):
        assert fake_cuda.words(address, MIB) == {LENDERS}


@pytest.mark.parametrize("with_streams", [False, True], ids=["everything", "streams"])
def test_a_return_waits_for_the_borrowers_work(fake_cuda, lender, borrower, with_streams):
    address = fake_cuda.allocate(MIB)
    grant = lender.yield_block(Block(address, MIB))
    borrower.borrow(MIB)
    borrower.fill(BORROWERS, 200_000)
    borrower.give_back(-1, with_streams)
    grant.reclaim()
    assert fake_cuda.words(address, MIB) == {BORROWERS}


def test_a_borrower_has_closed_a_block_that_it_returns(fake_cuda, lender, start_borrower):
    remote = start_borrower(FAKE_CUDA_CLOSE_US="200000")
    address = fake_cuda.allocate(MIB)
    grant = lender.yield_block(Block(address, MIB))
    remote.borrow(MIB)
    remote.tell("give_back")
    grant.reclaim(PATIENCE)
    fake_cuda.free(address)  # stops this process if the borrower has it open
    remote.answer()


def test_what_an_earlier_loan_left_in_a_stream_does_not_offer_a_later_one(
    fake_cuda, lender, borrower
):
    address = fake_cuda.allocate(MIB)
    first, second = fake_cuda.stream(), fake_cuda.stream()
    for stream in (first, second):
        fake_cuda.hold(stream, True)
    lender.yield_block(Block(address, MIB, first)).reclaim()
    fake_cuda.fill(address, LENDERS, MIB, second)
    grant = lender.yield_block(Block(address, MIB, second))
    fake_cuda.hold(first, False)
    fake_cuda.wait(first)
    assert grant.state == "armed"
    with pytest.raises(NotOfferedError):
        borrower.borrow(1, 0)
    fake_cuda.hold(second, False)
    fake_cuda.wait(second)
    assert grant.state == "yielded"
    grant.reclaim()


def test_devices_are_matched_by_their_identity(fake_library, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "ab")
    fake, lender = FakeCuda(fake_library), Lender()
    remote = Peer(lender.ledger_handle(), FAKE_CUDA_DEVICES="ba")
    try:
        for here, there in ((0, 1), (1, 0)):
            address = fake.allocate(MIB, here)
            with lender.yield_block(Block(address, MIB)):
                remote.borrow(MIB)
                assert remote.device() == there
                remote.give_back()
            fake.free(address, here)
    finally:
        remote.end()
        lender.close()


class Array:
    """What a tensor on a device shows of itself."""

    def __init__(self, address, **changes):
        shown = {"shape": (256, 4), "typestr": "<f4", "data": (address, False), "version": 2}
        self.__cuda_array_interface__ = {**shown, **changes}


def test_a_tensor_can_be_lent(fake_cuda, lender, borrower):
    address = fake_cuda.allocate(MIB)
    with lender.yield_block(Array(address, strides=None)) as grant:
        assert grant.block == Block(address, 4096)
        assert borrower.borrow(4096) == 4096
        shown = borrower.interface()
        assert (shown["shape"], shown["typestr"]) == ((4096,), "|u1")
        borrower.give_back()


def test_only_plain_memory_of_a_device_is_lent(fake_cuda, lender):
    for changes in ({"strides": (32, 8)}, {"data": (1 << 40, True)}, {"mask": object()}):
        with pytest.raises(TypeError, match="only contiguous memory"):
            lender.yield_block(Array(1 << 40, **changes))
    for memory in (None, 5, b"bytes", object()):
        with pytest.raises(TypeError, match="a block is a Block, or has __cuda_array_interface__"):
            lender.yield_block(memory)


def test_the_only_lender_is_meant_where_none_is_named(fake_cuda, lender):
    block = Block(fake_cuda.allocate(MIB), MIB)
    with yield_block(block):
        pass
    with Lender(), pytest.raises(LedgerError, match="2 objects Lender"):
        yield_block(block)
    with pytest.raises(LedgerError, match="0 objects Borrower"):
        gpu_memory.borrow_block(1)


def test_a_closed_lender_lends_nothing(fake_cuda, borrower, lender):
    address = fake_cuda.allocate(MIB)
    lender.yield_block(Block(address, MIB))
    lender.close()
    assert lender.stats().lent == 0
    with pytest.raises(LedgerError, match="the lender is closed"):
        lender.yield_block(Block(address, MIB))
    with pytest.raises(LedgerError, match="the lender is closed"):
        lender.ledger_handle()
    with pytest.raises(gpu_memory.PeerError, match="the lender has ended"):
        borrower.borrow(1, PATIENCE)


def test_a_closed_borrower_has_returned_everything(fake_cuda, lender, borrower):
    grants = [lender.yield_block(Block(fake_cuda.allocate(MIB), MIB)) for _ in range(2)]
    for _ in grants:
        borrower.borrow(MIB)
    borrower.close()
    assert [grant.state for grant in grants] == ["returned", "returned"]
    assert lender.borrowers == []
    for ask in (borrower.borrow, borrower.want):
        with pytest.raises(LedgerError, match="the borrower is closed"):
            ask(MIB)
    lender.reclaim(grants)


def test_grants_do_not_travel(fake_cuda, lender):
    with (
        lender.yield_block(Block(fake_cuda.allocate(MIB), MIB)) as grant,
        pytest.raises(TypeError, match="only in the process that lends"),
    ):
        pickle.dumps(grant)


@pytest.mark.parametrize(
    "error", [gpu_memory.NotReturnedError("text", 5), gpu_memory.CudaError("text", 2)]
)
def test_errors_travel(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))
