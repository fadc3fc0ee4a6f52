"""The queue through its two faces, several workers interleaved in one process."""

import contextlib
import ctypes
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.control_blocks import ControlBlock

from fusionloader._native import End, GpuState, TinyBatchState
from fusionloader.engine.manager.in_flight import InFlight, Job
from fusionloader.engine.manager.publications import MiniBatch

WORKERS = 3
RETURNED = 16  # offset of `returned` in a descriptor


@pytest.fixture
def bench(make_control_block):
    return make_control_block(WORKERS)


def lost_by(bench, worker):
    """What is taken back from a worker that has died."""
    return sorted((lost.sequence, lost.tiny_batch) for lost in bench.manager.take_back(worker))


@pytest.mark.parametrize("how", ["died", "gave back"])
def test_nobody_claims_what_comes_back_to_a_mini_batch_that_was_withdrawn(bench, how):
    bench.publish(0, 4, 2)
    claim = bench.workers[0].claim(End.SMALL, 0, 1)
    bench.manager.withdraw()
    if how == "died":
        bench.manager.take_back(0)
    else:
        bench.workers[0].give_back(claim, claim.first)
    assert bench.status(0).done
    assert bench.workers[1].claim(End.SMALL, 0, 1) is None


@pytest.mark.parametrize("withdrawn", [False, True])
def test_what_is_given_back_is_looked_for_unless_its_mini_batch_was_withdrawn(bench, withdrawn):
    """Another worker that looked would find it before it is dropped."""
    bench.publish(0, 4, 2)
    claim = bench.workers[0].claim(End.SMALL, 0, 1)
    if withdrawn:
        bench.manager.withdraw()
    bench.workers[0].give_back(claim, claim.first)
    address = bench.slot_of[0].address + RETURNED
    assert ctypes.c_uint32.from_address(address).value == (not withdrawn)


def test_a_mini_batch_in_which_a_tiny_batch_waits_is_not_dropped(bench):
    bench.publish(0, 4, 2)
    in_flight = InFlight(bench.manager, 10)
    batch = MiniBatch(0, [0, 1, 2, 3], *[[0, 1, 2, 3]] * 4, 1, 2)
    in_flight.jobs = [Job(batch, 2, sequence=0, descriptor=bench.slot_of[0], name=str)]
    in_flight.discard()
    assert in_flight.dropped() == []
    bench.manager.withdraw()
    assert in_flight.dropped() == in_flight.jobs


def test_a_mini_batch_that_is_still_to_be_found_is_not_overwritten(bench):
    for sequence in range(8):
        bench.publish(sequence, 4, 2)
    with pytest.raises(RuntimeError, match="more mini-batches are published than the ring"):
        bench.publish(8, 4, 2)
    bench.manager.deliver_until(1)
    bench.publish(8, 4, 2)
    sequences = [bench.workers[0].claim(End.SMALL, 0, 1).sequence for _ in range(16)]
    assert sequences == [n // 2 + 1 for n in range(16)]


def test_plain_data_does_not_look_like_a_state():
    """A worker that slept within a claim may look where a later descriptor has other data."""
    states = {state.value for state in TinyBatchState}
    assert min(states) > 1 << 15  # no row, count or number of a usual mini-batch
    assert min((a ^ b).bit_count() for a in states for b in states if a != b) >= 4


def test_what_is_hopeless_is_given_up_if_the_dead_worker_held_it(bench):
    for sequence in range(2):
        bench.publish(sequence, 4, 2)
    mine = [bench.workers[0].claim(End.SMALL, 0, 1) for _ in range(2)]
    theirs = bench.workers[1].claim(End.SMALL, 0, 1)
    hopeless = [(mine[0].sequence, mine[0].first), (theirs.sequence, theirs.first)]
    lost = bench.manager.take_back(0, hopeless)
    assert {(tiny.sequence, tiny.tiny_batch) for tiny in lost} == {(0, each.first) for each in mine}
    assert bench.workers[1].finish(theirs, theirs.first, TinyBatchState.COMPLETED)
    again = bench.workers[1].claim(End.SMALL, 0, 1)
    assert (again.sequence, again.first) == (0, mine[1].first)
    assert bench.workers[1].finish(again, again.first, TinyBatchState.COMPLETED)
    assert bench.status(0).done
    assert bench.status(0).failed == 1


def test_tiny_batches_are_claimed_from_the_oldest_mini_batch_first(bench):
    bench.publish(0, 4, 2)
    bench.publish(1, 4, 2)
    sequences = [bench.workers[0].claim(End.SMALL, 0, 1).sequence for _ in range(4)]
    assert sequences == [0, 0, 1, 1]
    assert bench.workers[0].claim(End.SMALL, 0, 1) is None


def claimed_by(worker, count=1):
    claim = worker.claim(End.SMALL, 0, count)
    return claim and (claim.sequence, list(range(claim.first, claim.first + claim.count)))


def test_workers_of_a_spread_mini_batch_begin_at_parts_of_their_own(bench):
    bench.publish(0, 18, 2, spread=WORKERS)  # 9 tiny-batches, 3 for each worker
    assert [claimed_by(worker) for worker in bench.workers] == [(0, [0]), (0, [3]), (0, [6])]
    assert claimed_by(bench.workers[1], 8) == (0, [4, 5])
    assert claimed_by(bench.workers[1], 8) == (0, [7, 8])
    assert [claimed_by(bench.workers[1]) for _ in range(3)] == [(0, [1]), (0, [2]), None]


def test_a_worker_takes_its_part_of_the_next_mini_batch_before_the_parts_of_others(bench):
    for sequence in range(3):
        bench.publish(sequence, 3, 1, spread=WORKERS)
    order = [claimed_by(bench.workers[2]) for _ in range(9)]
    assert order[:2] == [(0, [2]), (1, [2])]
    assert order[2:4] == [(0, [0]), (0, [1])]  # and the oldest before the third
    assert sorted(order) == [(sequence, [tiny]) for sequence in range(3) for tiny in range(3)]


def test_a_worker_finds_in_spread_mini_batches_what_a_dead_one_held(bench):
    bench.publish(0, 6, 1, spread=WORKERS)
    for _ in range(2):
        bench.workers[0].claim(End.SMALL, 0, 1)
    assert lost_by(bench, 0) == [(0, 0), (0, 1)]
    assert [claimed_by(bench.workers[2], 2) for _ in range(4)] == [
        (0, [4, 5]), (0, [0, 1]), (0, [2, 3]), None
    ]  # fmt: skip


def test_more_workers_than_tiny_batches_claim_all_of_a_spread_mini_batch(bench):
    bench.publish(0, 2, 1, spread=9)
    assert sorted(map(claimed_by, bench.workers[:2])) == [(0, [0]), (0, [1])]
    assert claimed_by(bench.workers[2]) is None


def test_of_a_spread_mini_batch_a_guest_gets_nothing_that_came_back(make_control_block):
    """It could be what it has given back itself, since it cannot report an error."""
    bench = make_control_block(1, 8, 1)
    guest = bench.attach()
    assert guest.take_guest_slot(1, 1 << 32)
    bench.publish(0, 2, 1, spread=1)
    claim = guest.claim(End.SMALL, 0, 1)
    guest.give_back(claim, claim.first)
    assert claimed_by(guest) == (0, [1])
    assert claimed_by(guest) is None
    assert claimed_by(bench.workers[0]) == (0, [0])


def test_the_two_ends_meet_and_never_overlap(bench):
    bench.publish(0, 20, 2)
    taken = []
    for turn in range(10):
        claim = bench.workers[turn % 2].claim(End.LARGE if turn % 2 else End.SMALL, 0, 1)
        taken.append(claim.first)
    assert taken[0::2] == [0, 1, 2, 3, 4]
    assert taken[1::2] == [9, 8, 7, 6, 5]
    assert bench.workers[0].claim(End.SMALL, 0, 1) is None


def test_the_threshold_keeps_the_largest_for_the_other_end(bench):
    bench.publish(0, 10, 2)
    small = [bench.workers[0].claim(End.SMALL, 2, 1) for _ in range(4)]
    assert [claim.first for claim in small[:3]] == [0, 1, 2]
    assert small[3] is None
    assert bench.workers[1].claim(End.LARGE, 0, 4).count == 2


def test_cpu_workers_take_the_large_end_when_they_are_alone(bench):
    bench.publish(0, 12, 2)
    assert bench.workers[0].claim_next(1).first == 5
    bench.manager.set_gpu(GpuState.OPEN, 2)
    assert [bench.workers[0].claim_next(1).first for _ in range(4)] == [0, 1, 2, 3]
    assert bench.workers[0].claim_next(1) is None
    bench.manager.set_gpu(GpuState.OFF, 2)
    assert bench.workers[0].claim_next(1).first == 4


def test_the_gpu_worker_claims_only_while_it_may_and_only_what_is_for_it(bench):
    gpu = bench.attach(WORKERS - 1, gpu=True)
    bench.publish(0, 4, 2, gpu_rows=0)
    bench.publish(1, 10, 2)
    for state in (GpuState.OFF, GpuState.CLOSED):
        bench.manager.set_gpu(state, 2)
        assert gpu.claim_next(3) is None
        assert not bench.manager.gpu_is_inside
    bench.manager.set_gpu(GpuState.OPEN, 2)
    claim = gpu.claim_next(3)
    assert (claim.sequence, claim.first, claim.count) == (1, 2, 3)
    assert bench.manager.gpu_is_inside
    gpu.leave()
    assert not bench.manager.gpu_is_inside
    # The threshold is for mini-batches that the GPU worker may work on.
    bench.manager.set_gpu(GpuState.OPEN, 4)
    assert [bench.workers[0].claim_next(1).sequence for _ in range(3)] == [0, 0, 1]
    assert bench.workers[0].claim_next(1) is None


def test_a_claim_in_vain_leaves_the_gpu_worker_inside_with_an_earlier_one(bench):
    gpu = bench.attach(WORKERS - 1, gpu=True)
    bench.manager.set_gpu(GpuState.OPEN, 2)
    bench.publish(0, 4, 2)
    assert gpu.claim_next(3).count == 2
    for state in (GpuState.OPEN, GpuState.CLOSED):
        bench.manager.set_gpu(state, 2)
        assert gpu.claim_next(3) is None
        assert bench.manager.gpu_is_inside
    gpu.leave()
    assert not bench.manager.gpu_is_inside


def test_what_the_gpu_worker_gives_back_is_for_cpu_workers(bench):
    gpu = bench.attach(WORKERS - 1, gpu=True)
    bench.manager.set_gpu(GpuState.OPEN, 0)
    bench.publish(0, 8, 2)
    claim = gpu.claim_next(2)
    gpu.give_back(claim, 3)
    assert gpu.finish(claim, 2, TinyBatchState.COMPLETED)
    assert gpu.claim_next(2).count == 2
    assert gpu.claim_next(2) is None
    assert bench.workers[0].claim_next(1).first == 3


def test_a_mini_batch_tells_who_did_what_of_it(bench):
    gpu = bench.attach(WORKERS - 1, gpu=True)
    bench.publish(0, 9, 2)
    slot = bench.slot_of[0].number
    shares = bench.manager.shares(slot)
    assert (shares.begun_seconds, shares.threshold) == (0.0, 0)
    assert all(side.samples == side.tiny_batches == 0 for side in (shares.cpu, shares.gpu))
    bench.manager.set_gpu(GpuState.OPEN, 1)
    of_gpu = gpu.claim_next(2)
    of_cpu = [bench.workers[0].claim_next(1) for _ in range(3)]
    bench.manager.set_gpu(GpuState.OPEN, 7)
    for claim in of_cpu:
        bench.workers[0].finish(claim, claim.first, TinyBatchState.COMPLETED)
    for tiny_batch in (3, 4):
        gpu.finish(of_gpu, tiny_batch, TinyBatchState.COMPLETED)
    shares = bench.manager.shares(slot)
    assert shares.threshold == 1
    assert (shares.cpu.tiny_batches, shares.cpu.samples) == (3, 6)
    assert (shares.gpu.tiny_batches, shares.gpu.samples) == (2, 3)
    assert 0 < shares.begun_seconds <= shares.cpu.finished_seconds <= shares.gpu.finished_seconds


def test_an_entry_names_its_row_and_item(bench):
    lists = {"rows": [2, 0, 1], "items": [10, 11, 12], "keys": [7, 8, 9], "occurrences": [0, 1, 2]}
    numbers = {"seed": 5, "epoch": 6, "number": 7, "group_size": 2}
    bench.publish(0, 3, 4, indices=b"abc", **lists, **numbers)
    claim = bench.workers[0].claim(End.SMALL, 0, 1)
    entries = [claim.entry(position) for position in range(3)]
    assert [(entry.item, entry.key) for entry in entries] == [(12, 9), (10, 7), (11, 8)]
    assert [(entry.occurrence, entry.row) for entry in entries] == [(2, 2), (0, 0), (1, 1)]
    assert (claim.seed, claim.epoch, bytes(claim.indices())) == (5, 6, b"abc")
    groups = {entry.row: entry.group for entry in entries}
    assert groups == {0: 7 << 25 | 1, 1: 7 << 25 | 1, 2: 7 << 25 | 3}
    items, keys, occurrences, of_groups = claim.sample_keys(1, 3)
    assert (items, keys, occurrences) == ([10, 11], [7, 8], [0, 1])
    assert of_groups == [entry.group for entry in entries[1:]]
    for read in (lambda: claim.entry(3), lambda: claim.sample_keys(2, 4)):
        with pytest.raises(IndexError):
            read()


def test_what_a_dead_worker_held_is_done_by_another(bench):
    bench.publish(0, 8, 2)
    bench.workers[0].claim(End.SMALL, 0, 2)
    assert lost_by(bench, 0) == [(0, 0), (0, 1)]
    firsts = set()
    while (claim := bench.workers[1].claim(End.SMALL, 0, 1)) is not None:
        firsts.add(claim.first)
    assert firsts == {0, 1, 2, 3}


def test_a_worker_declared_dead_cannot_finish(bench):
    bench.publish(0, 2, 2)
    claim = bench.workers[0].claim(End.SMALL, 0, 1)
    bench.manager.take_back(0)
    assert not bench.workers[0].finish(claim, 0, TinyBatchState.COMPLETED)
    assert bench.open(0) == (1, 0) and not bench.status(0).done


def test_a_withdrawn_mini_batch_is_claimed_no_more(bench):
    bench.publish(0, 8, 2)
    held = bench.workers[0].claim(End.SMALL, 0, 1)
    bench.manager.withdraw()
    assert bench.workers[1].claim(End.SMALL, 0, 1) is None
    assert bench.open(0) == (0, 1)
    assert bench.workers[0].finish(held, 0, TinyBatchState.COMPLETED)
    assert bench.status(0).done


@settings(max_examples=200, deadline=None)
@given(
    batches=st.lists(
        st.tuples(
            st.integers(1, 40),
            st.sampled_from([None, None, *range(WORKERS)]),
            st.integers(0, WORKERS + 1),
        ),
        min_size=1,
        max_size=6,
    ),
    tiny_size=st.integers(1, 7),
    moves=st.lists(
        st.tuples(
            st.integers(0, WORKERS - 1),
            st.sampled_from(["claim", "finish", "die"]),
            st.booleans(),
            st.integers(1, 5),
        ),
        max_size=120,
    ),
)
def test_every_tiny_batch_is_done_exactly_once_whatever_dies(batches, tiny_size, moves):
    """Of some mini-batches by one worker alone, of others by some that each begin at a part."""
    bench = ControlBlock(WORKERS)
    with contextlib.closing(bench):
        expected = {
            (sequence, tiny)
            for sequence, (samples, only, spread) in enumerate(batches)
            for tiny in range(
                bench.publish(sequence, samples, tiny_size, claimant=only, spread=spread)
            )
        }
        held = {number: [] for number in range(WORKERS)}
        done = []

        def claim(number, large, count):
            claimed = bench.workers[number].claim(End.LARGE if large else End.SMALL, 0, count)
            if claimed is not None:
                assert batches[claimed.sequence][1] in (None, number)
                span = range(claimed.first, claimed.first + claimed.count)
                held[number] += [(claimed, tiny) for tiny in span]
            return claimed

        def finish(number):
            claimed, tiny = held[number].pop()
            assert bench.workers[number].finish(claimed, tiny, TinyBatchState.COMPLETED)
            done.append((claimed.sequence, tiny))

        for number, move, large, count in moves:
            if move == "claim":
                claim(number, large, count)
            elif move == "finish" and held[number]:
                finish(number)
            elif move == "die":
                assert lost_by(bench, number) == sorted((c.sequence, t) for c, t in held[number])
                held[number].clear()
                bench.workers[number] = bench.attach(number)
        for number in range(WORKERS):
            while held[number]:
                finish(number)
            while claim(number, False, 3) is not None:
                while held[number]:
                    finish(number)
        assert sorted(done) == sorted(expected)
        assert all(bench.status(sequence).done for sequence in range(len(batches)))


@pytest.mark.parametrize("spread", [0, 2])
def test_processes_that_race_claim_everything_once(bench, spread):
    """Real processes claim at once from both ends or at parts, and write who did what."""
    samples = 4000
    bench.publish(0, samples, 1, spread=spread)
    readers = []
    for number in range(WORKERS):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            queue = bench.attach(number)
            mine, end = [], End.LARGE if number == 0 else End.SMALL
            while (claim := queue.claim(end, 0, 1 + number)) is not None:
                for tiny in range(claim.first, claim.first + claim.count):
                    queue.finish(claim, tiny, TinyBatchState.COMPLETED)
                    mine.append(tiny)
            with os.fdopen(write, "w") as file:
                file.write(" ".join(map(str, mine)))
            os._exit(0)
        os.close(write)
        readers.append((pid, read))
    done = []
    for pid, read in readers:
        with os.fdopen(read) as file:
            done += [int(word) for word in file.read().split()]
        os.waitpid(pid, 0)
    assert sorted(done) == list(range(samples))
    assert bench.status(0).completed == samples
