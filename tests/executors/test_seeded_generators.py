"""Generators that are seeded in memory are in the states that their libraries give them."""

import random

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.control_blocks import ControlBlock

from fusionloader import _native
from fusionloader._native import End
from fusionloader.transforms.executors.global_generators import (
    generator_states,
    preserved_generators,
)
from fusionloader.transforms.executors.python import (
    SampleKey,
    Seeding,
    locate_generators,
    native_generators,
    seed_generators,
)

DRAWS = {
    "python": random.random,
    "python's normal": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "numpy's normal": np.random.standard_normal,
    "torch": lambda: torch.rand(()),
    "torch's normal": lambda: torch.randn((), dtype=torch.float64),
    "many": lambda: (torch.rand(700), np.random.rand(700), hex(random.getrandbits(32 * 700))),
}


def states():
    python, torchs, numpy = generator_states()
    return python, torchs.tolist(), numpy[1].tolist(), numpy[2:]


def seed_by_libraries(seed, seeding):
    if seeding.python:
        random.seed(seed)
    if seeding.torch:
        torch.manual_seed(seed)
    if seeding.numpy:
        np.random.seed(seed % 2**32)


@given(
    seed=st.integers(0, 2**63 - 1),
    drawn=st.sets(st.sampled_from(list(DRAWS))),
    seeding=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@example(0, set(DRAWS), (True, True, True))
@example(2**32 - 1, set(), (True, True, True))
@example(2**32, set(DRAWS), (True, True, True))
def test_seeding_in_memory_gives_the_state_of_the_libraries(seed, drawn, seeding):
    generators = native_generators()
    assert generators is not None
    found = []
    with preserved_generators():
        for seed_all in (
            lambda: generators.seed(seed, *seeding),
            lambda: seed_by_libraries(seed, Seeding(*seeding)),
        ):
            seed_by_libraries(1, Seeding())
            for name in sorted(drawn):
                DRAWS[name]()
            seed_all()
            found.append((states(), [str(draw()) for draw in DRAWS.values()]))
    assert found[0] == found[1]


PROGRAM = {
    "python": random.random,
    "randrange": lambda: random.randrange(1 << 40),
    "numpy": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
    "nothing": lambda: 0,
    "seeds": lambda: random.seed(1) or np.random.seed(1),
    "all of a state": lambda: [random.getrandbits(32) for _ in range(624)][-1],
}


def sample(names):
    drawn = [PROGRAM[name]() for name in names]
    if names and names[-1] == "nothing":
        raise ValueError(repr(drawn))
    return drawn


def made_by_worker(program, make=sample):
    """Samples of a mini-batch, or the errors of those that cannot be made."""
    block, samples, made = ControlBlock(1), [], []
    try:
        block.publish(0, len(program), 4)
        worker = block.attach()
        claim = worker.claim(End.SMALL, 0, 64)
        generators, _ = locate_generators.__wrapped__()
        while len(samples) < len(program):
            arguments = 0, len(program), program, make, samples, generators, Seeding()
            try:
                worker.make_samples(claim, *arguments)
            except ValueError as error:
                assert worker.sample == len(samples)
                samples.append(str(error))
                worker.end_samples(claim, worker.sample // 4, 1)
            assert worker.sample is None
        for position in range(len(program)):
            entry = claim.entry(position)
            seed_by_libraries(_native.mix_key(claim.seed, claim.epoch, entry.key, 0), Seeding())
            try:
                made.append(sample(program[position]))
            except ValueError as error:
                made.append(str(error))
    finally:
        block.close()
    return samples, made


@settings(deadline=None)
@given(
    program=st.lists(st.lists(st.sampled_from(list(PROGRAM)), max_size=3), min_size=1, max_size=60),
    idle=st.sampled_from([0, 30, 40]),
)
def test_draws_are_those_of_generators_that_are_always_seeded(program, idle):
    with preserved_generators():
        found, expected = made_by_worker([["torch"]] * idle + program)
    assert found == expected


def test_a_sample_is_made_twice_only_where_the_first_ones_did_not_draw_from_python():
    calls = []

    def make(names):
        calls.append(names)
        return sample(names)

    names = [["python"] if number in (50, 60, 70) else [] for number in range(100)]
    with preserved_generators():
        made_by_worker(names, make)
    assert [each for each in calls if each] == [["python"]] * 4 and len(calls) == 101


def test_a_bit_generator_of_the_user_is_seeded_as_numpy_does():
    key = SampleKey(0, 7, 1, 3, 0)
    seed = _native.mix_key(7, 1, 3, 0)
    before = np.random.get_bit_generator()
    assert native_generators() is not None  # located once in a process, before the user's
    with preserved_generators():
        np.random.set_bit_generator(np.random.MT19937(5))
        try:
            assert native_generators() is None
            seed_generators(key, Seeding())
            found = states()
            seed_by_libraries(seed, Seeding())
            assert found == states()
        finally:
            np.random.set_bit_generator(before)
    assert native_generators() is not None
