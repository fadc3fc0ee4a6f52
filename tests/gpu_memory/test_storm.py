"""SIGKILL at any moment loses no block and lets nobody write into another's memory."""

import pytest
from storm import Storm
from support.campaigns import KILLS, SEED

DEATHS = max(8, KILLS)


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
