"""When remote workers may claim, and how many of their leases may be out."""

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.offload.balance import Answer, LeaseLimit, low_stock, may_claim

IN_TIME = Answer(seconds=0.1, step_seconds=0.1, in_flight=10)
LATE = Answer(seconds=0.6, step_seconds=0.1, in_flight=10)
STALLING = Answer(seconds=0.9, step_seconds=0.1, in_flight=10)
ANSWERS = st.builds(Answer, st.floats(0, 100), st.floats(0, 10), st.integers(1, 64))


@given(st.integers(1, 1000))
def test_remote_workers_claim_while_nothing_is_ready_and_hold_while_everything_is(in_flight):
    low = low_stock(in_flight)
    assert may_claim(0, low)
    assert not may_claim(in_flight, low)


def test_workers_that_cost_more_than_they_save_do_not_claim():
    assert may_claim(0, 2, overhead=0.9)
    assert not may_claim(0, 2, overhead=1.0)


def test_the_limit_grows_to_all_while_answers_come_in_time():
    limit = LeaseLimit(16, now=0)
    assert limit.may_request(0, 0) and not limit.may_request(1, 0)
    for number in range(16):
        limit.answered(IN_TIME, 1 + number)
    assert limit.may_request(15, 20) and not limit.may_request(16, 20)


def grown(leases):
    limit = LeaseLimit(64, now=0)
    while limit.leases < leases:
        limit.answered(IN_TIME, 1)
    return limit


def test_late_answers_halve_the_limit_once_for_all_that_were_out_together():
    limit = grown(32)
    for _ in range(32):
        limit.answered(LATE, 10)
    assert limit.leases == 16
    limit.answered(LATE, 10 + 0.7)
    assert limit.leases == 8


def test_after_a_late_answer_the_limit_grows_by_one_for_all_that_are_out():
    limit = grown(32)
    limit.answered(LATE, 10)
    for _ in range(16):
        limit.answered(IN_TIME, 20)
    assert 16.9 < limit.leases < 17


def test_where_one_lease_stalls_training_requests_pause_longer_every_time():
    limit = LeaseLimit(4, now=0)
    now, pauses = 10.0, []
    for _ in range(8):
        limit.answered(STALLING, now)
        assert not limit.may_request(0, now)
        begun = now
        while not limit.may_request(0, now):
            now += 1
        pauses.append(now - begun)
        now += STALLING.seconds
    assert pauses[0] >= 45 and pauses == sorted(pauses) and pauses[-1] == pauses[-2]


def test_an_answer_to_a_request_from_before_counts_for_nothing():
    limit = LeaseLimit(4, now=10)
    limit.answered(STALLING, 10.5)
    assert limit.may_request(0, 10.5)


def test_a_late_answer_that_does_not_stall_training_leaves_one_lease():
    limit = LeaseLimit(4, now=0)
    limit.answered(LATE, 10)
    assert limit.may_request(0, 10) and not limit.may_request(1, 10)


def test_workers_that_have_left_take_their_leases_along():
    limit = grown(32)
    limit.allow(3)
    assert limit.may_request(2, 2) and not limit.may_request(3, 2)
    limit.allow(8)
    for _ in range(9):
        limit.answered(IN_TIME, 3)
    assert limit.may_request(7, 3)


@given(st.lists(st.tuples(ANSWERS, st.floats(0, 5))), st.integers(1, 128))
def test_whatever_comes_the_limit_is_from_one_to_all_and_a_pause_ends(answers, most):
    limit, now = LeaseLimit(most, 0), 0.0
    for answer, passed in answers:
        now += passed
        limit.answered(answer, now)
        assert 1 <= limit.leases <= most
    assert limit.may_request(0, now + 100 * 800 + 1)
