"""What memory sharing has to do between two processes: over a real driver, or over the fake one.

Each case returns the figures that it found, and raises AssertionError where something is wrong.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from support import waiting
from support.cuda_driver import Driver
from support.memory_peer import Peer
from support.waiting import gone

from fusionloader.system.gpu_memory import Block, Grant, Lender, NotReturnedError, probe
from fusionloader.system.gpu_memory.lender import PATIENCE

MIB = 1 << 20
FAKE = "FUSIONLOADER_LIBCUDA" in os.environ  # a stand-in for the driver
SIZE = (8 if FAKE else 256) * MIB
_PATIENCE = 60.0

wait_until = partial(waiting.wait_until, seconds=_PATIENCE, pause=0.001)

Figures = dict[str, Any]
Case = Callable[[], Figures]


class Memory:
    """Device memory to lend from, and the stream that uses it."""

    def __init__(self, nbytes: int = SIZE) -> None:
        self.driver = Driver()
        self.stream = self.driver.stream()
        self.address = self.driver.allocate(nbytes)
        self.nbytes = nbytes

    def fill(self, word: int) -> None:
        self.driver.fill(self.address, word, self.nbytes, self.stream)

    def words(self, *offsets: int) -> list[int]:
        return [self.driver.words(self.address + at, self.stream)[0] for at in offsets]

    def sample(self, count: int = 256) -> set[int]:
        """Different words at places all over."""
        step = self.nbytes // count // 4 * 4
        return set(self.words(*range(0, self.nbytes - 3, step), self.nbytes - 4))

    def block(self, begin: int = 0, nbytes: int | None = None) -> Block:
        return Block(self.address + begin, nbytes or self.nbytes - begin, self.stream)


@contextmanager
def lending(nbytes: int = SIZE) -> Iterator[tuple[Lender, Memory]]:
    """A lender with memory, which is freed in the end: nobody may have it open then."""
    memory = Memory(nbytes)
    with Lender() as lender:
        yield lender, memory
    memory.driver.synchronize(memory.stream)
    memory.driver.free(memory.address)


def milliseconds(seconds: list[float]) -> dict[str, float]:
    return {
        "median_ms": round(statistics.median(seconds) * 1e3, 3),
        "max_ms": round(max(seconds) * 1e3, 3),
    }


def a_part_of_an_allocation_goes_and_comes_back_and_its_neighbours_stay() -> Figures:
    with lending() as (lender, memory):
        quarter = SIZE // 4
        memory.fill(0xAAAA0001)
        memory.driver.fill(memory.address + quarter, 0xBBBB0002, 2 * quarter, memory.stream)
        with Peer(lender.ledger_handle()) as peer:
            grant = lender.yield_block(memory.block(quarter, 2 * quarter))
            assert peer.borrow(nbytes=MIB) == 2 * quarter
            assert peer.words(nbytes=4) == {0xBBBB0002}
            peer.fill(word=0xCCCC0003)
            peer.give_back()
            grant.reclaim(_PATIENCE, "wait")
        found = memory.words(quarter - 4, quarter, 3 * quarter - 4, 3 * quarter)
        assert found == [0xAAAA0001, 0xCCCC0003, 0xCCCC0003, 0xAAAA0001], found
        return {}


def the_two_processes_pass_the_probe() -> Figures:
    with lending() as (lender, _), Peer(lender.ledger_handle()) as peer:
        peer.tell("probe")
        refused = probe(lender)
        assert peer.answer() == refused
        assert refused is None, refused
        return {}


def a_block_is_on_offer_only_when_the_device_has_done_what_came_before() -> Figures:
    with lending() as (lender, memory), Peer(lender.ledger_handle()) as peer:
        rounds = 1 if FAKE else 400
        for number in range(rounds):
            memory.fill(number + 1)
        grant = lender.yield_block(memory.block())
        state = grant.state
        peer.borrow(nbytes=MIB)
        assert peer.words(at=SIZE - 4) == {rounds}
        peer.give_back()
        grant.reclaim(_PATIENCE, "wait")
        return {"state_after_yield": state}


def a_worker_that_looks_returns_soon_after_it_is_asked() -> Figures:
    seconds = []
    with lending() as (lender, memory), Peer(lender.ledger_handle()) as peer:
        for _ in range(3 if FAKE else 20):
            grant = lender.yield_block(memory.block())
            peer.borrow(nbytes=MIB)
            peer.tell("serve")
            wait_until(lambda: memory.words(0)[0] > 0, "the borrower does not write")
            asked = time.perf_counter()
            grant.reclaim(_PATIENCE, "wait")
            seconds.append(time.perf_counter() - asked)
            peer.answer()
            memory.fill(0)
    return milliseconds(seconds)


def after_a_kill_in_the_middle_of_writing_nothing_is_written_any_more() -> Figures:
    seconds = []
    with lending() as (lender, memory):
        for number in range(2 if FAKE else 8):
            with Peer(lender.ledger_handle()) as peer:
                grant = lender.yield_block(memory.block())
                peer.borrow(nbytes=MIB)
                peer.tell("hog", word=0xDEAD0000)
                wait_until(lambda: 0xDEAD0000 in memory.sample(4), "the borrower does not write")
                assert_not_returned(grant)
                began = time.perf_counter()
                peer.kill()
                peer.join()
                grant.reclaim(_PATIENCE, "wait")
                seconds.append(time.perf_counter() - began)
                memory.fill(0x600D0000 + number)
                time.sleep(0.3)  # a late write would show up by then
                assert memory.sample() == {0x600D0000 + number}, "a dead process has written"
    return milliseconds(seconds)


def assert_not_returned(grant: Grant) -> None:
    try:
        grant.reclaim(0.05, "quarantine")
    except NotReturnedError:
        return
    raise AssertionError("a borrower that never looks has returned its block")


def a_late_borrower_is_killed_and_the_block_is_back() -> Figures:
    seconds = []
    rounds = 8
    with lending() as (lender, memory):
        for number in range(1, rounds + 1):
            with Peer(lender.ledger_handle()) as peer:
                memory.fill(0)
                grant = lender.yield_block(memory.block())
                peer.borrow(nbytes=MIB)
                peer.tell("hog", word=number)
                wait_until(lambda: memory.words(0) != [0], "the borrower does not write")
                began = time.perf_counter()
                grant.reclaim()
                seconds.append(time.perf_counter() - began)
                peer.join()
            memory.fill(0xF00D)
            assert memory.sample() == {0xF00D}
        assert lender.stats().killed == rounds
    return {**milliseconds(seconds), "patience_ms": round(PATIENCE * 1e3)}


def the_borrower_s_memory_is_free_again_when_the_lender_is_killed() -> Figures:
    driver = Driver()
    before = 0 if FAKE else driver.memory()[0]
    lender = subprocess.Popen(
        [sys.executable, str(Path(__file__)), "lend-and-sleep"], stdout=subprocess.PIPE, text=True
    )
    assert lender.stdout is not None
    child = int(lender.stdout.readline())
    lender.kill()
    lender.wait()
    began = time.perf_counter()
    wait_until(lambda: gone(child), "the borrower outlives its lender")
    seconds = time.perf_counter() - began
    if not FAKE:  # whose memory is no device's
        wait_until(lambda: driver.memory()[0] >= before - 64 * MIB, "memory is still taken")
    return {"borrower_ended_after_ms": round(seconds * 1e3, 1)}


def lend_and_sleep() -> None:
    """The process that the case above kills, with a block of it in use."""
    with lending() as (lender, memory), Peer(lender.ledger_handle()) as peer:
        lender.yield_block(memory.block())
        peer.borrow(nbytes=MIB)
        print(peer.pid, flush=True)
        peer.sleep()


def opening_and_closing_cost() -> Figures:
    figures: Figures = {}
    for nbytes in [SIZE] if FAKE else [64 * MIB, 1024 * MIB, 16384 * MIB]:
        if not FAKE and nbytes > Driver().memory()[0] // 2:
            break
        opened, closed = [], []
        with lending(nbytes) as (lender, memory), Peer(lender.ledger_handle()) as peer:
            for _ in range(5):
                grant = lender.yield_block(memory.block())
                wait_until(lambda: grant.state == "yielded", "the block is not offered")  # noqa: B023
                opened.append(peer.timed("borrow", nbytes=MIB))
                closed.append(peer.timed("give_back"))
                grant.reclaim(_PATIENCE, "wait")
        figures[f"{nbytes // MIB} MiB"] = {
            "borrow": milliseconds(opened),
            "return": milliseconds(closed),
        }
    return figures


CASES: list[Case] = [
    a_part_of_an_allocation_goes_and_comes_back_and_its_neighbours_stay,
    the_two_processes_pass_the_probe,
    a_block_is_on_offer_only_when_the_device_has_done_what_came_before,
    a_worker_that_looks_returns_soon_after_it_is_asked,
    after_a_kill_in_the_middle_of_writing_nothing_is_written_any_more,
    a_late_borrower_is_killed_and_the_block_is_back,
    the_borrower_s_memory_is_free_again_when_the_lender_is_killed,
    opening_and_closing_cost,
]

if __name__ == "__main__" and sys.argv[1:] == ["lend-and-sleep"]:
    lend_and_sleep()
