"""Ranks of a stream that are killed at random and resumed by others: each sample once.

A rank saves its state now and then; what it drew behind the last one is lost with it, and drawn
again. `make kills KILLS=1000` does so a thousand times.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from support.campaigns import SEED, kills

from fusionloader.sources.streams.order import ShuffleShape
from fusionloader.sources.streams.sampler import StreamSampler

COUNTS = np.array([3100, 40, 1700, 2600, 900, 2200])
SHAPE = ShuffleShape(window=600, run=24, interleave=3)


def samplers_of(ranks: int, epoch: int) -> list[StreamSampler]:
    made = [StreamSampler(COUNTS, SHAPE, num_replicas=ranks, rank=rank) for rank in range(ranks)]
    for sampler in made:
        sampler.set_epoch(epoch)
    return made


@pytest.mark.kills
def test_kills_and_resumes_over_one_to_eight_ranks_lose_and_repeat_nothing():
    chance = random.Random(SEED)
    wanted, killed, epoch = kills(100), 0, 0
    total = int(COUNTS.sum())
    while killed < wanted:
        delivered: list[int] = []
        states = None
        while len(delivered) < total:
            ranks = chance.randint(1, 8)
            samplers = samplers_of(ranks, epoch)
            if states is not None:
                for sampler in samplers:
                    sampler.load_state_dict(sampler.merge_states(states))
            saved = []
            for sampler in samplers:
                run = iter(sampler)
                kept = [next(run, None) for _ in range(chance.randint(0, 500))]
                saved.append(json.loads(json.dumps(sampler.state_dict())))
                for _ in range(chance.randint(0, 40)):  # lost: nothing was saved behind them
                    next(run, None)
                delivered += [sample for sample in kept if sample is not None]
            states, killed = saved, killed + ranks
        assert len(delivered) == total
        assert sorted(delivered) == list(range(total))
        epoch += 1
