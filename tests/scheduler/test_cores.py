"""Which cores are dedicated to workers: an exact property of every choice."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.cores import Machine, cores_for_workers


@st.composite
def machines(draw):
    """Cores of one or two CPUs each, as an affinity mask leaves them."""
    sizes = draw(st.lists(st.integers(1, 2), max_size=40))
    numbers = iter(draw(st.permutations(range(sum(sizes)))))
    cores = [tuple(sorted(next(numbers) for _ in range(size))) for size in sizes]
    quota = draw(st.none() | st.floats(0.1, 100))
    ranks = draw(st.integers(1, 9))
    idle = draw(st.just(math.inf) | st.floats(-5, 100))
    return Machine(cores, quota, draw(st.integers(0, ranks - 1)), ranks, idle)


counts = st.integers(0, 20)


def some_of(machine):
    return st.sets(st.sampled_from(machine.cores)) if machine.cores else st.just(set())


@given(machines(), counts, counts, st.data())
def test_each_worker_has_a_free_core_of_its_own_or_none_has(machine, workers, threads, data):
    taken = data.draw(some_of(machine))
    chosen = cores_for_workers(machine, workers, threads, taken)
    assert len(chosen) in (0, workers)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(machine.cores) - taken


@given(machines(), counts, counts)
def test_training_keeps_cores_to_itself(machine, workers, threads):
    chosen = cores_for_workers(machine, workers, threads)
    share = len(machine.cores) // machine.ranks
    assert not chosen or len(chosen) + threads <= share


@given(machines(), st.lists(counts, min_size=9, max_size=9), counts)
def test_ranks_never_meet_whatever_each_asks_for(machine, workers, threads):
    everybodys = []
    for rank in range(machine.ranks):
        here = replace(machine, rank=rank)
        everybodys += cores_for_workers(here, workers[rank], threads)
    assert len(set(everybodys)) == len(everybodys)


@given(machines(), counts, counts)
def test_where_time_is_short_of_the_cpus_nobody_is_bound(machine, workers, threads):
    if machine.quota is not None and machine.quota < sum(map(len, machine.cores)):
        assert cores_for_workers(machine, workers, threads) == []


@given(machines(), counts, counts)
def test_on_a_busy_machine_nobody_is_bound(machine, workers, threads):
    if machine.ranks * (workers + threads) > machine.idle:
        assert cores_for_workers(machine, workers, threads) == []


def test_workers_have_cores_wherever_there_are_enough():
    machine = Machine([(0, 4), (1, 5), (2, 6), (3, 7)], quota=8.0)
    assert cores_for_workers(machine, 3, 1) == [(1, 5), (2, 6), (3, 7)]
    assert cores_for_workers(machine, 4, 1) == []
    assert cores_for_workers(machine, 2, 1, taken=[(3, 7)]) == [(1, 5), (2, 6)]


def test_every_rank_has_its_share():
    cores = [(number,) for number in range(8)]
    chosen = [cores_for_workers(Machine(cores, None, rank, 2), 3, 1) for rank in range(2)]
    assert chosen == [[(1,), (2,), (3,)], [(5,), (6,), (7,)]]
