"""What is asked wrongly is refused by a typed error, and leaves nothing lent or open."""

import pytest

from fusionloader.system.gpu_memory import (
    Block,
    Borrower,
    CudaError,
    DeviceError,
    GrantError,
    Lender,
    NotOfferedError,
    SizeError,
    reclaim_block,
    return_block,
    yield_block,
)
from fusionloader.system.gpu_memory.lender import Grant

MIB = 1 << 20


@pytest.fixture
def block(fake_cuda):
    return Block(fake_cuda.allocate(MIB), MIB)


# ---- sizes -------------------------------------------------------------------------------------


def test_what_is_no_number_of_bytes_is_refused(lender, borrower):
    for nbytes in (0, -1, -(2**70)):
        with pytest.raises(SizeError, match=f"at least 1 byte must be borrowed, not {nbytes}"):
            borrower.borrow(nbytes)
        with pytest.raises(SizeError, match=f"at least 1 byte, not {nbytes}"):
            Block(1 << 40, nbytes)
    for nbytes in (1.5, "1", None):
        with pytest.raises(TypeError):
            borrower.borrow(nbytes)
    with pytest.raises(SizeError, match="0 bytes or more can be wanted, not -1"):
        borrower.want(-1)
    borrower.want(2**200)
    assert lender.wanted_bytes > 2**60
    for slots in (-1, 0, 4097, 2**70):
        with pytest.raises(SizeError, match=f"1 to 4096 slots, not {slots}"):
            Lender(slots)


def test_more_than_there_is_is_not_borrowed(lender, borrower, block):
    with lender.yield_block(block) as grant:
        for nbytes in (MIB + 1, 2**63, 2**64, 2**200):
            for timeout in (0, 0.01):
                with pytest.raises(NotOfferedError, match=f"no block of {nbytes} bytes"):
                    borrower.borrow(nbytes, timeout)
            assert grant.state == "yielded"
            assert lender.wanted_bytes == 0


def test_memory_that_no_device_has_is_not_lent(lender):
    for address in (0, 4096, 2**63):
        with pytest.raises(GrantError, match="no memory of a CUDA device"):
            lender.yield_block(Block(address, MIB))
    for beyond in (Block(2**64, 1), Block(-1, 1), Block(4096, 2**64)):
        with pytest.raises(TypeError):
            lender.yield_block(beyond)


def test_a_block_ends_inside_of_its_allocation(lender, block):
    with pytest.raises(SizeError, match="end outside of their allocation"):
        lender.yield_block(Block(block.address + 1, MIB))
    assert lender.stats().lent == 0


def test_what_to_do_when_a_block_is_overdue_is_said_rightly(lender, block):
    with lender.yield_block(block) as grant:
        for patience in (-1, float("nan")):
            with pytest.raises(ValueError, match="patience"):
                grant.reclaim(patience)
        with pytest.raises(ValueError, match="'kill', 'wait', 'quarantine'"):
            grant.reclaim(1, "reboot")


# ---- grants and mappings -----------------------------------------------------------------------


def test_a_grant_is_reclaimed_once_and_a_mapping_returned_once(lender, borrower, block):
    grant = lender.yield_block(block)
    borrower.borrow(MIB)
    assert borrower.address() > 0
    borrower.give_back()
    for ask in (borrower.address, borrower.interface):
        with pytest.raises(GrantError, match="its address is no longer valid"):
            ask()
    with pytest.raises(GrantError, match="was returned already"):
        borrower.give_back()
    assert grant.state == "returned"
    grant.reclaim()
    with pytest.raises(GrantError, match="it was reclaimed already"):
        reclaim_block(grant)
    with lender.yield_block(block), pytest.raises(GrantError, match="it was reclaimed already"):
        reclaim_block(grant)


def test_a_grant_that_is_forged_or_of_another_lender_is_refused(lender, borrower, block):
    with lender.yield_block(block) as grant, Lender() as other:
        borrower.borrow(MIB)
        forged = Grant(lender, block, grant._ticket)
        for mistaken in (lambda: reclaim_block(forged), lambda: other.reclaim([grant])):
            with pytest.raises(GrantError, match="no grant of this lender"):
                mistaken()
        assert grant.state == "borrowed"
        borrower.give_back()


def test_memory_is_lent_once_at_a_time_and_by_one_lender(lender, block):
    half = Block(block.address + MIB // 2, MIB // 2)
    with Lender() as other:
        for first, why in ((lender, "are lent already"), (other, "already, by another lender")):
            with first.yield_block(half):
                for again in (block, half):
                    with pytest.raises(GrantError, match=why):
                        lender.yield_block(again)
                with lender.yield_block(Block(block.address, MIB // 2)):
                    pass
        with lender.yield_block(block):
            pass


def test_what_is_no_grant_mapping_or_handle_is_refused(lender):
    for thing in (None, 7, "grant", (0, 1)):
        with pytest.raises(GrantError, match="comes from yield_block"):
            reclaim_block(thing)
        with pytest.raises(GrantError, match="comes from borrow_block"):
            return_block(thing)
        with pytest.raises(GrantError, match="no grant"):
            lender.reclaim([thing])
        with pytest.raises(TypeError, match="is made with the LedgerHandle of a lender"):
            Borrower(thing)


# ---- what cannot be lent or opened -------------------------------------------------------------


def test_memory_that_others_cannot_open_is_not_lent(fake_cuda, lender):
    address = fake_cuda.allocate_expandable(MIB)
    with pytest.raises(GrantError, match="expandable segments"):
        lender.yield_block(Block(address, MIB))


def test_memory_is_not_lent_from_a_stream_that_is_captured(fake_cuda, lender, block):
    stream = fake_cuda.stream()
    fake_cuda.capture(stream, True)
    with pytest.raises(GrantError, match="captured into a graph"):
        lender.yield_block(Block(block.address, MIB, stream))
    fake_cuda.capture(stream, False)
    with lender.yield_block(Block(block.address, MIB, stream)):
        pass


@pytest.mark.parametrize("again", [False, True], ids=["freed", "freed and allocated again"])
def test_memory_freed_before_it_is_borrowed_is_an_error_on_both_sides(
    fake_cuda, lender, borrower, block, again
):
    grant = lender.yield_block(block)
    fake_cuda.free(block.address)
    if again:
        assert fake_cuda.allocate(MIB) == block.address, "the fake driver gives the same place"
    with pytest.raises(CudaError, match="cuIpcOpenMemHandle failed") as raised:
        borrower.borrow(MIB)
    assert raised.value.code == 1
    assert grant.state == "returned"
    assert borrower.held() == 0
    with pytest.raises(GrantError, match="freed while they were lent"):
        grant.reclaim()
    assert lender.stats().lent == 0


def test_memory_freed_while_it_is_borrowed_is_an_error(
    fake_cuda, lender, borrower, block, monkeypatch
):
    # Undefined in CUDA; drivers were seen to keep the memory until the borrower closes it.
    monkeypatch.setenv("FAKE_CUDA_LENIENT", "1")
    grant = lender.yield_block(block)
    borrower.borrow(MIB)
    fake_cuda.free(block.address)
    borrower.fill(1)
    borrower.give_back()
    with pytest.raises(GrantError, match="freed while they were lent"):
        reclaim_block(grant)


def test_the_gpu_of_the_lender_has_to_be_visible(fake_cuda, lender, start_borrower, block):
    remote = start_borrower(FAKE_CUDA_DEVICES="b")
    grant = lender.yield_block(block)
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES must name it"):
        remote.borrow(MIB)
    assert grant.state == "returned"
    grant.reclaim()


def test_a_borrower_whose_work_has_failed_does_not_return_its_block(lender, borrower, block):
    grant = lender.yield_block(block)
    borrower.borrow(MIB)
    borrower.break_device()
    with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as raised:
        borrower.give_back()
    assert raised.value.code == 700
    assert grant.state == "borrowed"
    assert borrower.held() == 1
    grant.reclaim(0)
    assert lender.stats().killed == 1


def test_a_process_cannot_borrow_from_itself(lender, block):
    with (
        Borrower(lender.ledger_handle()) as me,
        yield_block(block, lender) as grant,
        pytest.raises(CudaError, match="cuIpcOpenMemHandle failed"),
    ):
        me.borrow_block(MIB)
        assert grant.state == "returned"
