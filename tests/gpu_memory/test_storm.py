"""SIGKILL at any moment loses no block and lets nobody write into another's memory."""

import pytest
from storm import Storm
from support.campaigns import SEED, kills

KILLS = kills(8)


@pytest.mark.kills
@pytest.mark.timeout(300 + KILLS)
def test_killed_borrowers_lose_no_block_and_write_into_no_others_memory(fake_cuda):
    print("seed", SEED)
    tally = Storm(fake_cuda, SEED).run(KILLS)
    print(tally)
    assert tally.kills >= KILLS
    assert tally.lost == 0
    assert tally.foreign_writes == 0
    assert tally.borrowed_bytes > 0
