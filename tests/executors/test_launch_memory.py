"""The GPU worker's memory: its own first, then borrowed, which it returns on request."""

import pytest
from support.memory_peer import Peer
from support.scripted_launches import WAITING
from support.waiting import wait_until

from fusionloader.system.gpu_memory import Block

SHORT = "no memory on the device"
REVOKED = "training has revoked its memory"
SIZE = 32 << 20


@pytest.fixture
def peer(lender):
    with Peer(lender.ledger_handle()) as made:
        yield made


@pytest.fixture
def offer(lender, fake_cuda):
    """Lends a block that the test's borrower takes when it wants one."""

    def offered(nbytes=SIZE):
        grant = lender.yield_block(Block(fake_cuda.allocate(nbytes), nbytes, 0))
        fake_cuda.wait(0)
        return grant

    return offered


def test_a_launch_runs_at_once_in_its_own_memory_while_that_suffices(peer, offer):
    grant = offer()
    peer.prepare_launches(most_own=64, most_borrowed=64)
    reply = peer.launch(samples=40)
    assert reply == {"results": [None] * 40, "launches": [("own", 40)], "blocks": 0}
    assert grant.state == "yielded"
    grant.reclaim()


def test_one_that_ran_out_of_memory_is_repeated_in_parts_in_borrowed_memory(peer, offer, lender):
    grant = offer()
    peer.prepare_launches(most_own=0, most_borrowed=64)
    reply = peer.launch(samples=40)
    assert reply == {"results": [None] * 40, "launches": [("borrowed", 5)] * 8, "blocks": 1}
    assert lender.wanted_bytes == 0  # it has what it wanted
    assert grant.state == "borrowed"
    assert peer.launch(samples=3)["launches"] == [("borrowed", 1)] * 3
    assert peer.rest() == {"blocks": 0, "trims": 2}
    assert grant.state == "returned"
    grant.reclaim()


def test_what_is_left_when_training_asks_its_memory_back_goes_to_cpu_workers(
    peer, offer, fake_cuda
):
    grant = offer()
    peer.prepare_launches(most_own=0, most_borrowed=64)
    peer.tell("launch", samples=16, wait_at=2)
    address = grant.block.address
    wait_until(lambda: fake_cuda.words(address, 4) == {WAITING}, "the launch does not begin")
    grant.reclaim(60, "wait")
    reply = peer.answer()
    assert reply["results"] == [None] * 6 + [REVOKED] * 10
    assert reply["launches"] == [("borrowed", 2)] * 3
    assert reply["blocks"] == 0


def test_without_an_offer_smaller_parts_are_tried_in_its_own_memory(peer, lender):
    peer.prepare_launches(most_own=5, most_borrowed=0)
    reply = peer.launch(samples=40)
    assert reply == {"results": [None] * 40, "launches": [("alone", 5)] * 8, "blocks": 0}
    peer.rest()
    assert lender.wanted_bytes == 40 * (16 << 20)  # for the next time that training waits
    peer.launch(samples=4)  # for which its own memory suffices
    assert lender.wanted_bytes == 0


def test_small_blocks_are_left_where_they_are(peer, offer):
    grant = offer(4 << 20)
    peer.prepare_launches(most_own=0, most_borrowed=64)
    assert peer.launch(samples=4)["results"] == [SHORT] * 4
    assert grant.state == "yielded"
    grant.reclaim()


def test_a_worker_that_can_do_nothing_for_long_gives_up(peer):
    peer.prepare_launches(most_own=0, most_borrowed=0)
    for _ in range(99):
        assert peer.launch(samples=1)["results"] == [SHORT]
    assert peer.launch(samples=1)["results"] == f"{SHORT} for 100 launches in a row"
