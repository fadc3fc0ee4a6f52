"""One lender, two borrowers, and SIGKILL at any moment.

The lender lends parts of its allocations in the order of its streams, takes them back, uses them,
and frees some. What it has back holds what it wrote; what it never lends is never touched; every
block comes back. The fake driver aborts on what CUDA leaves undefined.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass

import pytest
from support.campaigns import KILLS, SEED
from support.fake_cuda import FakeCuda
from support.memory_peer import Peer

from fusionloader.system.gpu_memory import Block, Grant, Lender, NotReturnedError

DEATHS = max(8, KILLS)
PART = 1 << 17  # bytes
PARTS = 3  # of an allocation, of which the first is never lent
ALLOCATIONS = 3
WORK_MICROSECONDS = 1000
LENDERS, BORROWERS = 0xA << 28, 0xB


@dataclass
class Tally:
    rounds: int = 0
    loans: int = 0
    kills: int = 0
    killed_overdue: int = 0
    borrowed_bytes: int = 0
    quarantined: int = 0
    lost: int = 0
    foreign_writes: int = 0


class Storm:
    def __init__(self, fake: FakeCuda, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fake = fake
        self.lender = Lender(slots=16)
        self.stream = fake.stream()
        self.tally = Tally()
        self.bases = [self.allocate() for _ in range(ALLOCATIONS)]
        self.out: dict[int, Grant] = {}  # by address
        self.borrowers = [self.start_borrower() for _ in range(2)]

    def allocate(self) -> int:
        base = self.fake.allocate(PARTS * PART)
        self.fake.fill(base, LENDERS, PART, self.stream)
        self.fake.wait(self.stream)
        return base

    def start_borrower(self) -> Peer:
        peer = Peer(self.lender.ledger_handle())
        peer.tell("storm", self.chance.randrange(1 << 30), LENDERS >> 28, BORROWERS)
        return peer

    def run(self, kills: int) -> Tally:
        os.environ["FAKE_CUDA_WORK_US"] = str(WORK_MICROSECONDS)
        try:
            while self.is_going_on(kills):
                self.round()
            self.finish()
        finally:
            for peer in self.borrowers:
                peer.end()
        return self.tally

    def is_going_on(self, kills: int) -> bool:
        """On a busy machine borrowers may be killed before they have borrowed anything."""
        stats = self.lender.stats()
        return self.tally.kills + stats.killed < kills or not stats.borrowed_ever

    def round(self) -> None:
        self.tally.rounds += 1
        self.lend()
        time.sleep(self.chance.random() * 0.01)
        if self.chance.random() < 0.25:
            self.chance.choice(self.borrowers).kill()
            self.tally.kills += 1
            time.sleep(self.chance.random() * 0.003)
        self.take_back()
        self.replace_the_dead()
        # Otherwise it is lent again at once, with publications of earlier loans still to come.
        if self.chance.random() < 0.6:
            self.use_own()
        if self.chance.random() < 0.2:
            self.free_one()

    def lend(self) -> None:
        for base in self.bases:
            for part in range(1, PARTS):
                address = base + part * PART
                if address in self.out or self.chance.random() < 0.2:
                    continue
                self.fake.fill(address, LENDERS | self.tally.rounds, PART, self.stream)
                self.out[address] = self.lender.yield_block(Block(address, PART, self.stream))
                self.tally.loans += 1

    def take_back(self) -> None:
        patience = self.chance.choice([0, 0.001, 0.005, 0.02])
        policy = self.chance.choice(["kill", "quarantine", "quarantine"])
        try:
            self.lender.reclaim(self.out.values(), patience, policy)
        except NotReturnedError as overdue:
            self.tally.quarantined += overdue.nbytes // PART
        self.out = {a: grant for a, grant in self.out.items() if grant.state != "free"}

    def replace_the_dead(self) -> None:
        for number, peer in enumerate(self.borrowers):
            if (code := peer.process.poll()) is not None:
                assert code == -signal.SIGKILL, f"it ended by {code}"
                peer.end()
                self.borrowers[number] = self.start_borrower()

    def use_own(self) -> None:
        """The lender's own work on what it has: nobody else writes there, then or later."""
        value = LENDERS | self.tally.rounds
        own = [
            b + p * PART
            for b in self.bases
            for p in range(1, PARTS)
            if b + p * PART not in self.out
        ]
        for address in own:
            self.fake.fill(address, value, PART, self.stream)
        self.fake.wait(self.stream)
        time.sleep(self.chance.choice([0, 0.002, 0.008]))
        for address in own:
            self.tally.foreign_writes += self.fake.words(address, PART) != {value}
        for base in self.bases:
            self.tally.foreign_writes += self.fake.words(base, PART) != {LENDERS}

    def free_one(self) -> None:
        base = self.chance.choice(self.bases)
        if not any(base <= address < base + PARTS * PART for address in self.out):
            self.fake.wait(self.stream)
            self.fake.free(base)
            self.bases[self.bases.index(base)] = self.allocate()

    def finish(self) -> None:
        for peer in self.borrowers:
            peer.kill()
        with contextlib.suppress(NotReturnedError):
            self.lender.reclaim(self.out.values(), 60, "quarantine")
        stats = self.lender.stats()
        self.tally.lost = stats.lent // PART
        self.tally.kills += stats.killed
        self.tally.killed_overdue = stats.killed
        self.tally.borrowed_bytes = stats.borrowed_ever
        for base in self.bases:
            self.fake.free(base)
        self.lender.close()


@pytest.mark.kills
@pytest.mark.timeout(300 + DEATHS)
def test_killed_borrowers_lose_no_block_and_write_into_no_others_memory(fake_cuda):
    print("seed", SEED)
    tally = Storm(fake_cuda, SEED).run(DEATHS)
    print(tally)
    assert tally.kills >= DEATHS
    assert tally.lost == 0
    assert tally.foreign_writes == 0
    assert tally.borrowed_bytes > 0
