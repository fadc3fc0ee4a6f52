"""Generators that no sample draws from are not seeded; what samples draw is as if they were."""

import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusionloader.transforms.executors.python import SampleKey, SeededRuns, Seeding, seed_generators

ALL = Seeding()
DRAWS = {
    "python": random.random,
    "randrange": lambda: random.randrange(1 << 40),
    "numpy": lambda: float(np.random.rand()),
    "permutation": lambda: np.random.permutation(30).tolist(),
    "torch": lambda: float(torch.rand(())),
    "nothing": lambda: 0,
    "seeds": lambda: random.seed(1) or np.random.seed(1),
    "all of a state": lambda: [random.getrandbits(32) for _ in range(624)][-1],
}


def sample(names):
    drawn = [DRAWS[name]() for name in names]
    if names and names[-1] == "nothing":
        raise ValueError(repr(drawn))
    return drawn


def made(run, names):
    try:
        return run(lambda: sample(names))
    except ValueError as error:
        return str(error)


@settings(deadline=None)
@given(
    program=st.lists(st.lists(st.sampled_from(list(DRAWS)), max_size=3), max_size=60),
    idle=st.sampled_from([0, 30, 40]),
)
def test_draws_are_those_of_a_generator_that_is_always_seeded(program, idle):
    runs = SeededRuns()
    for number, names in enumerate([["torch"]] * idle + program):
        key = SampleKey(number, 7, 1, number, 0)

        def seeded(make, key=key):
            seed_generators(key, ALL)
            return make()

        found = made(lambda make, key=key: runs.run(key, ALL, make), names)
        assert found == made(seeded, names)


@pytest.mark.parametrize("drawn", ["python", "numpy"])
def test_a_sample_is_made_twice_only_where_the_first_ones_drew_nothing(drawn):
    runs, calls = pickle.loads(pickle.dumps(SeededRuns())), []

    def run(number, names):
        def make():
            calls.append(number)
            return sample(names)

        runs.run(SampleKey(number, 7, 1, number, 0), ALL, make)

    for number in range(100):
        run(number, [drawn] if number in (50, 60, 70) else [])
    assert calls.count(50) == 2 and len(calls) == 101
