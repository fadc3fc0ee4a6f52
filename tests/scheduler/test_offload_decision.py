"""FastFlow's decision: when, in which requests, and how much."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fusionloader.scheduler.offload.decision import (
    SPEED_UP_THRESHOLD,
    Candidate,
    LocalMetrics,
    Metrics,
    OffloadCounters,
    RemoteMetrics,
    decide,
    offload_ratio,
)

RATES = st.floats(0, 1e7)
COSTS = st.floats(0, 10)
LOCALS = st.builds(LocalMetrics, RATES, RATES, COSTS)
REMOTES = st.dictionaries(st.sampled_from(Candidate), st.builds(RemoteMetrics, RATES, COSTS))
METRICS = st.builds(Metrics, RATES, RATES, RATES, COSTS, COSTS)
STALLED = LocalMetrics(training_rate=1000, local_rate=350, local_cost=0.02)


def test_a_share_computed_by_hand_where_remote_workers_have_capacity_to_spare():
    # Ocycle / Pcycle = 0.1: Lower = 650 * 1.1 = 715 < Upper = 800.
    metrics = Metrics.of(STALLED, RemoteMetrics(800, 0.002))
    assert metrics.lower == pytest.approx(715)
    assert metrics.upper == 800
    assert metrics.estimate == pytest.approx(350 * 0.9 + 800)
    assert offload_ratio(metrics) == pytest.approx(0.8)


def test_a_share_computed_by_hand_where_both_sides_are_too_slow():
    metrics = Metrics.of(STALLED, RemoteMetrics(500, 0.002))
    assert offload_ratio(metrics) == pytest.approx(500 / 850)


@given(REMOTES, LOCALS)
def test_nothing_is_offloaded_where_training_does_not_wait(remote, local):
    assume(local.training_rate < SPEED_UP_THRESHOLD * local.local_rate)
    decision = decide(local, remote)
    assert decision.ratio == 0 and decision.candidate is None


@given(REMOTES, LOCALS)
def test_a_decision_is_a_share_and_says_why(remote, local):
    decision = decide(local, remote)
    assert 0 <= decision.ratio <= 1
    assert (decision.candidate is None) == (decision.ratio == 0) or decision.ratio < 1e-300
    assert decision.candidate is None or decision.candidate in remote
    assert decision.reason


@given(METRICS, RATES)
def test_more_remote_capacity_is_never_offered_a_smaller_share(metrics, more):
    faster = replace(metrics, remote_rate=metrics.remote_rate + more)
    assert 0 <= offload_ratio(metrics) <= offload_ratio(faster) <= 1


@given(st.floats(0.021, 10))
def test_requests_that_cost_more_than_preparing_are_not_made(cost):
    decision = decide(STALLED, {Candidate.TINY_BATCH: RemoteMetrics(1e6, cost)})
    assert decision.candidate is None
    assert "times the CPU time of preparing it here" in decision.reason


def test_the_kind_with_the_highest_estimate_is_taken():
    remote = {
        Candidate.TINY_BATCH: RemoteMetrics(300, 0.001),
        Candidate.SHIP: RemoteMetrics(700, 0.004),
        Candidate.MINI_BATCH: RemoteMetrics(500, 0.0001),
    }
    assert decide(STALLED, remote).candidate is Candidate.SHIP


def test_a_kind_that_is_hardly_better_than_a_simpler_one_is_not_taken():
    remote = {
        Candidate.TINY_BATCH: RemoteMetrics(690, 0.001),
        Candidate.MINI_BATCH: RemoteMetrics(700, 0.001),
    }
    assert decide(STALLED, remote).candidate is Candidate.TINY_BATCH


@pytest.mark.parametrize(
    ("local", "remote", "reason"),
    [
        (LocalMetrics(0, 0, 0), {}, "no samples were made"),
        (LocalMetrics(100, 100, 0.1), {}, "does not wait"),
        (LocalMetrics(105, 100, 0.1), {}, "1.05 times as fast at best, less than 1.1"),
        (LocalMetrics(200, 100, 0), {}, "no measurable CPU time"),
        (STALLED, {}, "prepared nothing"),
        (STALLED, {Candidate.SHIP: RemoteMetrics(0, 0)}, "prepared nothing"),
    ],
)
def test_a_decision_not_to_offload_names_its_reason(local, remote, reason):
    decision = decide(local, remote)
    assert decision.ratio == 0 and reason in decision.reason


@given(st.floats(0, 1), st.integers(0, 10**6), st.integers(0, 10**6))
def test_counters_keep_the_share(ratio, local_before, remote_before):
    counters = OffloadCounters(ratio, local_before, remote_before)
    taken = [local_before, remote_before]
    for _ in range(200):
        taken[counters.may_offload(*taken)] += 1
    remote = taken[1] - remote_before
    assert abs(remote - 200 * ratio) <= 1


def test_counters_without_a_share_are_never_open_and_with_all_of_it_always():
    assert not OffloadCounters(0).may_offload(10**6, 0)
    assert OffloadCounters(1).may_offload(0, 10**6)


def test_a_training_that_local_workers_cannot_serve_at_all_leaves_everything_to_remote_ones():
    none = LocalMetrics(training_rate=100, local_rate=0, local_cost=0)
    assert math.isinf(none.speed_up)
    decision = decide(none, {Candidate.TINY_BATCH: RemoteMetrics(50, 0.001)})
    assert decision.ratio == 1 and decision.candidate is Candidate.TINY_BATCH
