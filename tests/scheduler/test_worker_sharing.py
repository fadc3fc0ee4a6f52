"""Where workers go that have nothing to do."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.worker_sharing import RankLoad, WorkerMove, share_workers

progress = st.builds(
    RankLoad,
    unclaimed=st.lists(st.integers(0, 12), max_size=4).map(tuple),
    half_done=st.integers(0, 3),
    servers=st.integers(0, 6),
    idle=st.integers(0, 6),
)
machines = st.lists(progress, max_size=6)


def busy(*unclaimed, servers=1, half_done=0):
    return RankLoad(unclaimed, half_done, servers, 0)


def done(idle):
    return RankLoad((0, 0), 0, 0, idle)


def needs(ranks, ahead):
    """Tiny-batches of each rank's mini-batch ``ahead`` that its own workers will not claim soon."""
    left = []
    for rank in ranks:
        before = sum(rank.unclaimed[:ahead])
        here = rank.unclaimed[ahead] if ahead < len(rank.unclaimed) else 0
        left.append(here - min(here, max(0, rank.half_done - before)))
    return left


def test_equal_ranks_share_no_workers():
    assert share_workers([busy(8, 16), busy(8, 16)]) == []
    assert share_workers([done(2), done(2)]) == []


def test_idle_workers_move_to_the_rank_that_has_work():
    assert share_workers([done(2), busy(8, 16)]) == [WorkerMove(0, 1, 0, 2)]


def test_a_rank_with_a_tiny_batch_to_claim_keeps_its_workers():
    assert share_workers([RankLoad((1,), 0, 0, 2), busy(8)]) == []


def test_work_that_its_workers_are_about_to_take_needs_no_help():
    assert share_workers([done(3), busy(3, servers=3, half_done=3)]) == []
    assert share_workers([done(3), busy(3, servers=3, half_done=2)]) == [WorkerMove(0, 1, 0, 1)]


def test_workers_move_in_proportion_to_unclaimed_work():
    moves = share_workers([done(6), busy(40, servers=0), busy(20, servers=0)])
    assert moves == [WorkerMove(0, 1, 0, 4), WorkerMove(0, 2, 0, 2)]


def test_what_training_gets_next_comes_first():
    assert share_workers([done(2), busy(0, 50), busy(2, 50)]) == [WorkerMove(0, 2, 0, 2)]
    assert share_workers([done(3), busy(0, 50), busy(2, 10)])[1:] == [WorkerMove(0, 1, 1, 1)]


@given(machines)
def test_only_idle_workers_of_ranks_without_work_move(ranks):
    moved = Counter()
    for move in share_workers(ranks):
        assert move.workers > 0 and move.source != move.destination
        moved[move.source] += move.workers
    for rank, count in moved.items():
        assert not any(ranks[rank].unclaimed) and count <= ranks[rank].idle


@given(machines)
def test_no_rank_gets_more_workers_than_it_has_tiny_batches(ranks):
    for move in share_workers(ranks):
        assert move.workers <= needs(ranks, move.ahead)[move.destination]


@given(machines)
def test_no_worker_is_idle_while_one_is_needed(ranks):
    moves = share_workers(ranks)
    most = max((len(rank.unclaimed) for rank in ranks), default=0)
    needed = sum(sum(needs(ranks, ahead)) for ahead in range(most))
    idle = sum(rank.yields for rank in ranks)
    assert sum(move.workers for move in moves) == min(needed, idle)


@given(machines)
def test_a_later_mini_batch_gets_help_only_when_the_earlier_ones_have_theirs(ranks):
    moved = Counter()
    for move in share_workers(ranks):
        moved[move.ahead] += move.workers
    for last in moved:
        for ahead in range(last):
            assert moved[ahead] == sum(needs(ranks, ahead))


@given(machines)
def test_no_move_would_help_another_destination_more(ranks):
    moved = Counter()
    for move in share_workers(ranks):
        if move.ahead == 0:
            moved[move.destination] += move.workers
    needed = needs(ranks, 0)
    for favoured, count in moved.items():
        for other in range(len(ranks)):
            if moved[other] < needed[other]:
                its_last = needed[favoured] / (ranks[favoured].servers + count)
                one_more = needed[other] / (ranks[other].servers + moved[other] + 1)
                assert its_last >= one_more - 1e-9


@given(st.lists(progress, min_size=1, max_size=5), st.randoms())
def test_how_many_leave_does_not_depend_on_the_order_of_the_ranks(ranks, random):
    shuffled = random.sample(ranks, len(ranks))
    assert sum(move.workers for move in share_workers(ranks)) == sum(
        move.workers for move in share_workers(shuffled)
    )
