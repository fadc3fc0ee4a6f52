"""Training's end of lending memory, with a borrower in another process and a fake driver."""

import logging
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stand_in_allocator import MIB, StandInAllocator
from support.memory_peer import Peer
from support.waiting import wait_until

from fusionloader.gpu.memory_lender import MemoryLender, MemoryOptions

pytestmark = pytest.mark.usefixtures("fake_library")
LIMIT = 100 * MIB


def no_pool():
    raise AssertionError("the borrower of these tests has no launches")


def lender_of(allocator, *, limit=LIMIT, always=True):
    return MemoryLender(MemoryOptions(0, limit, always, allocator, no_pool))


def test_the_stand_in_s_snapshot_has_the_names_of_torch_s():
    """Torch makes them in C++, of constants, and only where there is a device."""
    library = Path(torch.__file__).parent / "lib/libtorch_python.so"
    known = library.read_bytes()
    allocator = StandInAllocator()
    allocator.give(allocator.take(MIB, 0))
    (segment,) = allocator.snapshot()
    allocator.close()
    names = {*segment, *segment["blocks"][0], "active_allocated", "inactive"}
    missing = {name for name in names if name.encode() + b"\0" not in known}
    assert missing == set()


class Pair:
    """A lender and its borrower, which has passed the probe; both end with the block."""

    def __init__(self, **options):
        self.allocator = StandInAllocator()
        self.lender = lender_of(self.allocator, **options)
        self.peer = Peer(self.lender.open_ledger())

    def __enter__(self):
        self.peer.__enter__()
        self.peer.tell("probe")
        wait_until(self.lender._session.prove, "the probe does not end")
        assert self.peer.answer() is None
        return self

    def __exit__(self, *error):
        self.peer.__exit__(*error)
        self.lender.close()
        self.allocator.close()

    @property
    def lent(self):
        return sorted(grant.block.nbytes // MIB for grant in self.lender._out)

    def want(self, mib):
        self.peer.want(nbytes=mib * MIB)


@pytest.fixture
def pair():
    with Pair() as made:
        yield made


def test_nothing_is_lent_and_nothing_looked_at_while_nothing_is_wanted(pair):
    pair.allocator.reserve(64 * MIB)
    pair.lender.lend()
    assert (pair.lent, pair.allocator.looks) == ([], 0)


def test_the_largest_blocks_are_lent_until_the_request_is_met(pair):
    for size in (24, 64, 40):
        pair.allocator.reserve(size * MIB)
    pair.want(50)
    pair.lender.lend()
    assert pair.lender.short  # which keeps the worker off the device while training uses it
    pair.lender.lend()  # what is on offer already counts
    assert pair.lent == [64]
    pair.want(80)
    pair.lender.lend()
    assert pair.lent == [24, 64]  # 40 more would be beyond the limit
    pair.lender.take_back(pair.peer)
    assert pair.allocator.used == set()
    assert pair.lender.stats()["lent_bytes"] == (24 + 64) * MIB


def test_what_is_borrowed_comes_back_when_it_is_asked_for(pair):
    address = pair.allocator.reserve(64 * MIB)
    pair.want(10)
    pair.lender.lend()
    assert pair.allocator.used == {address}
    pair.peer.borrow(nbytes=20 * MIB)
    pair.peer.tell("return_when_asked")
    pair.lender.take_back(None)
    wait_until(lambda: pair.lender._reclaim(1) if pair.lender._out else True, "it is not returned")
    pair.peer.answer()
    assert pair.allocator.used == set()
    reported = pair.lender.stats()
    assert reported["borrowed_bytes"] == reported["revoked_bytes"] == 64 * MIB


def test_an_overdue_borrower_is_killed(pair):
    pair.allocator.reserve(64 * MIB)
    pair.want(10)
    pair.lender.lend()
    pair.peer.borrow(nbytes=20 * MIB)
    assert pair.lender.take_back(pair.peer)
    assert pair.allocator.used == set()
    with pytest.raises(RuntimeError, match="the borrower ended with -9"):
        pair.peer.answer()
    reported = pair.lender.stats()
    assert reported["kills"] == 1
    assert reported["patience_seconds"] == pytest.approx(0.06)  # for the next one


def test_under_mps_an_overdue_block_stays_out_until_it_is_returned(pair, tmp_path, monkeypatch):
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    first = pair.allocator.reserve(64 * MIB)
    pair.allocator.reserve(32 * MIB)
    pair.want(10)
    pair.lender.lend()
    pair.peer.borrow(nbytes=20 * MIB)
    pair.lender.take_back(pair.peer)
    assert pair.allocator.used == {first}
    pair.want(10)  # again: a borrower that has waited for a block wants nothing afterwards
    pair.lender.lend()
    assert pair.lent == [32, 64]
    pair.peer.give_back()
    pair.lender.take_back(pair.peer)
    assert pair.allocator.used == set()


def test_an_allocator_that_rounds_sizes_up_ends_lending_and_the_log_says_why(pair, caplog):
    pair.allocator.reserve(64 * MIB)
    pair.allocator.rounds_to = 48 * MIB
    pair.want(10)
    with caplog.at_level(logging.WARNING, "fusionloader.gpu"):
        for _ in range(3):
            pair.lender.lend()
            pair.lender.take_back(pair.peer)
    assert pair.allocator.used == set()
    assert len(caplog.records) == 1
    assert "take more memory" in caplog.text


def test_nothing_is_lent_while_a_graph_is_captured(pair):
    pair.allocator.reserve(64 * MIB)
    pair.want(10)
    pair.allocator.captures = True
    pair.lender.lend()
    assert pair.lent == []
    pair.allocator.captures = False
    pair.lender.lend()
    assert pair.lent == [64]


def test_a_capture_while_the_worker_starts_is_not_broken(fake_cuda):
    allocator = StandInAllocator()
    allocator.reserve(64 * MIB)
    lender = lender_of(allocator)
    stream = fake_cuda.stream()
    fake_cuda.capture(stream, True)
    allocator.captures = True
    with Peer(lender.open_ledger()) as peer:
        peer.want(nbytes=MIB)
        lender.lend()
        wait_until(lambda: not any("probe" in thread.name for thread in threading.enumerate()))
        fake_cuda.capture(stream, False)
        assert lender.why_not is None
        allocator.captures = False
        lender.lend()
        assert peer.probe() is None
        lender.lend()
        assert [grant.block.nbytes for grant in lender._out] == [64 * MIB]
        lender.take_back(peer)
    lender.close()
    allocator.close()


def test_a_worker_that_ends_in_a_capture_does_not_break_it(fake_cuda):
    allocator = StandInAllocator()
    lender = lender_of(allocator)
    stream = fake_cuda.stream()
    with Peer(lender.open_ledger()) as peer:
        peer.want(nbytes=MIB)
        lender.lend()  # the probe's block is out
    fake_cuda.capture(stream, True)
    allocator.captures = True
    lender.close()
    fake_cuda.capture(stream, False)
    assert lender.why_not is None
    allocator.close()


UNKNOWN = {"device": 0, "segment_pool_id": (0, 0), "is_expandable": False, "begin": 0}


@pytest.mark.parametrize("why", ["expandable_segments", "not as expected"])
def test_a_snapshot_that_nothing_can_be_lent_from_ends_lending_and_the_log_says_why(
    pair, caplog, why
):
    pair.allocator.reserve(64 * MIB, expandable=True)
    if why == "not as expected":
        pair.allocator.snapshot = lambda: [UNKNOWN]
    pair.want(10)
    pair.lender.lend()
    assert pair.lent == []
    assert why in pair.lender.why_not
    assert why in caplog.text


def test_memory_that_cannot_be_exported_ends_lending_and_is_given_back(pair):
    address = pair.allocator.reserve(64 * MIB)
    pair.allocator.segments[0].address += 64 * MIB  # of nobody, for the driver
    pair.allocator.segments[0].blocks[0].address += 64 * MIB
    pair.want(10)
    pair.lender.lend()
    assert pair.lent == [] and pair.allocator.used == set()
    assert pair.lender.why_not is not None
    pair.allocator.segments[0].address = address


def test_peaks_that_fit_together_are_no_reason_to_lend():
    with Pair(always=False) as pair:
        pair.allocator.reserve(64 * MIB)
        pair.want(10)
        # 1000 MiB; training reserves 64, the worker holds 136 and wants 10.
        pair.allocator.device_bytes = (800 * MIB, 1000 * MIB)
        pair.allocator.highest = 854 * MIB
        pair.lender.lend()
        assert (pair.lent, pair.lender.short) == ([], False)
        pair.allocator.highest += MIB
        pair.lender.lend()
        assert (pair.lent, pair.lender.short) == ([64], True)


@pytest.fixture(scope="module")
def lasting_pair(fake_library):
    with Pair() as made:
        yield made


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.integers(1, 80)),
        st.tuples(st.just("drop"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.tuples(st.integers(0, 150), st.integers(0, 2))),
    ),
    max_size=12,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_no_byte_is_used_and_lent_at_once_and_reserved_memory_does_not_grow(lasting_pair, steps):
    pair, mine = lasting_pair, []
    allocator, lender, peer = pair.allocator, pair.lender, pair.peer
    allocator.close()
    loans = 0
    for step, value in steps:
        if step == "use":
            mine.append(allocator.take(value * MIB, 0))
        elif step == "drop" and mine:
            allocator.give(mine.pop(value % len(mine)))
        elif step == "wait":
            wanted, borrowed = value
            reserved = allocator.reserved()
            pair.want(wanted)
            lender.lend()
            assert lender.why_not is None
            lent = {grant.block.address for grant in lender._out}
            assert lent.isdisjoint(mine) and allocator.used == lent | set(mine)
            assert sum(grant.block.nbytes for grant in lender._out) <= LIMIT
            if wanted == 0:
                assert not lent
            loans = min(borrowed, len(lent))
            for _ in range(loans):
                peer.borrow(nbytes=1)
            if loans:
                peer.tell("return_when_asked")
            lender.take_back(None)
            wait_until(lambda: not lender._out or lender._reclaim(1), "it is not returned")
            if loans:
                peer.answer()
            assert allocator.reserved() == reserved
        assert allocator.used == set(mine)
    allocator.close()
