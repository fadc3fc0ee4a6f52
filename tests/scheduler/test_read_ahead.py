"""Which ranges are read next: all that is announced, in few requests, within the budget."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from fusionloader.scheduler.read_ahead import ReadAhead, ReadLimits
from fusionloader.scheduler.retries import Backoff, Hedging


@dataclass
class Files:
    """Samples one after the other in files of so many, each followed by a gap."""

    nbytes: list[int]
    of_file: int = 1000
    gap: int = 0

    def place(self, item):
        return item

    def item(self, place):
        return place

    def range(self, place):
        first = place - place % self.of_file
        start = sum(self.nbytes[first:place]) + self.gap * (place - first)
        return place // self.of_file, start, start + self.nbytes[place]

    def __len__(self):
        return len(self.nbytes)


def plan_of(places, budget=1 << 30, most=1 << 20, gap=100):
    return ReadAhead(places, ReadLimits(budget, most, gap))


def test_neighbours_are_read_with_one_request_whenever_they_are_due():
    plan = plan_of(Files([100] * 50, gap=10))
    plan.announce([7, 40, 5, 6, 9, 3])
    request = plan.next_request()
    assert (request.file, request.items) == (0, (5, 6, 7))
    assert (request.start, request.stop) == (550, 870)
    assert plan.next_request().items == (40,)
    assert plan.next_request().items == (9,)
    assert plan.next_request().items == (3,)
    assert plan.next_request() is None


def test_a_gap_is_read_over_and_a_large_one_is_not():
    wide = plan_of(Files([100] * 50), gap=100)
    wide.announce([5, 7, 10])
    assert wide.next_request().items == (5, 7)
    assert wide.next_request().items == (10,)


def test_requests_end_with_files_and_at_their_most_bytes():
    plan = plan_of(Files([100] * 12, of_file=6), most=300)
    plan.announce(range(12))
    found = []
    while (request := plan.next_request()) is not None:
        found.append((request.file, request.items))
    assert found == [(0, (0, 1, 2)), (0, (3, 4, 5)), (1, (6, 7, 8)), (1, (9, 10, 11))]


def test_a_sample_larger_than_a_request_is_read_alone():
    plan = plan_of(Files([100, 5000, 100]), most=300)
    plan.announce([0, 1, 2])
    assert [plan.next_request().items for _ in range(3)] == [(0,), (1,), (2,)]


def test_requests_wait_until_there_is_room_for_all_of_their_samples():
    plan = plan_of(Files([100] * 100), budget=1200)
    plan.announce(range(100))
    requested = [plan.next_request().items for _ in range(4)]
    assert requested == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]
    assert plan.next_request() is None
    plan.taken(0)
    plan.taken(1)
    assert plan.next_request() is None
    plan.taken(2)
    assert plan.next_request().items == (12, 13, 14)


def test_what_is_wanted_at_once_is_read_beyond_the_budget_and_alone_then():
    plan = plan_of(Files([100] * 10), budget=400)
    plan.announce(range(10))
    while plan.next_request() is not None:
        pass
    assert plan.held == 400
    (request,) = plan.demand([8])
    assert request.items == (8,) and plan.held == 500
    assert plan.demand([8, 0]) == []


def test_a_sample_that_is_announced_twice_is_kept_until_it_is_taken_twice():
    plan = plan_of(Files([100] * 4))
    plan.announce([1, 1])
    assert plan.next_request().items == (1,)
    plan.announce([1])
    assert [plan.taken(1), plan.taken(1), plan.taken(1)] == [False, False, True]
    assert plan.held == 0 and not plan.expects(1)


def test_forgotten_samples_are_not_read_and_make_room():
    plan = plan_of(Files([100] * 9), budget=300)
    plan.announce([0, 4, 8])
    plan.next_request()
    assert plan.dropped([4]) == [] and plan.dropped([0]) == [0]
    assert plan.held == 0
    assert plan.next_request().items == (8,)


@settings(max_examples=200, deadline=None)
@given(
    nbytes=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    of_file=st.integers(1, 40),
    budget=st.integers(1, 4000),
    most=st.integers(1, 2000),
    gap=st.integers(0, 500),
    chance=st.randoms(use_true_random=False),
)
def test_every_announced_sample_is_read_once_and_within_limits(
    nbytes, of_file, budget, most, gap, chance
):
    places = Files(nbytes, of_file)
    plan = plan_of(places, budget, most, gap)
    coming = chance.sample(range(len(nbytes)), len(nbytes))
    left, read, requested = list(coming), [], set()
    plan.announce(coming)
    while left:
        request = plan.next_request()
        requests = [] if request is None else [request]
        if request is None and left[0] not in requested:
            requests = plan.demand([left[0]])
            assert requests, "a needed sample without a request is requested"
        for each in requests:
            assert each.stop - each.start <= max(most, *(nbytes[item] for item in each.items))
            for item in each.items:
                file, start, stop = places.range(item)
                assert file == each.file and each.start <= start and stop <= each.stop
            read += each.items
            requested.update(each.items)
        assert plan.held <= max(budget - 1, 0) + max(nbytes)
        if chance.random() < 0.5 and left[0] in requested:
            assert plan.taken(left.pop(0))
    assert sorted(read) == list(range(len(nbytes)))
    assert plan.held == 0 and plan.next_request() is None


# ---- late requests, failed requests ------------------------------------------------------------


def test_requests_are_late_past_the_95th_percentile():
    hedging = Hedging()
    for _ in range(19):
        hedging.answered(1.0)
    assert hedging.late_after() is None
    for number in range(300):
        hedging.answered(0.01 * (number % 100))
    assert 0.93 <= hedging.late_after() <= 0.97


@settings(max_examples=50, deadline=None)
@given(late=st.lists(st.booleans(), min_size=1, max_size=2000))
def test_no_more_than_a_twentieth_is_sent_twice(late):
    hedging = Hedging()
    for is_late in late:
        hedging.sent()
        if is_late:
            hedging.allow()
    assert hedging.hedged <= 0.05 * hedging.requests + 1


def test_waits_double_up_to_the_longest_and_end():
    backoff = Backoff(retries=4, first=0.5, longest=3.0)
    assert [backoff.wait(failed, 0.999999) for failed in range(1, 6)] == [
        *(map(lambda wait: 0.999999 * wait, (0.5, 1.0, 2.0, 3.0))),
        None,
    ]
    assert backoff.wait(1, 0.0) == 0.0
