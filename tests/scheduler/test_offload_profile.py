"""The profile's phases: what is measured, and that it ends."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.offload.decision import Candidate, LocalMetrics, RemoteMetrics
from fusionloader.scheduler.offload.profile import OffloadProfile, ProfilePhase, ProfileWindow

# A training of 10 ms a step of 32 samples, which waits 30 ms for local workers alone.
LOCAL = ProfileWindow(1, 0.04, 0.03, 32, 0, local_cpu_seconds=0.16)
REMOTE = ProfileWindow(1, 0.01, 0.0, 8, 24, local_cpu_seconds=0.04, remote_cpu_seconds=0.006)
NUMBERS = st.floats() | st.just(0.0)
WINDOWS = st.builds(
    ProfileWindow,
    steps=st.integers(0, 3),
    seconds=NUMBERS,
    waited=NUMBERS,
    local_samples=st.integers(-1, 10**9),
    remote_samples=st.integers(-1, 10**9),
    local_cpu_seconds=NUMBERS,
    remote_cpu_seconds=NUMBERS,
    answer_seconds=NUMBERS,
)
STORED = LocalMetrics(training_rate=3200, local_rate=800, local_cost=0.005)


def observe(profile, window, times):
    for _ in range(times):
        profile.observe(window)


def test_local_workers_are_measured_first_then_each_kind_of_request():
    profile = OffloadProfile(tuple(Candidate), steps=10)
    assert profile.phase is ProfilePhase.LOCAL and profile.candidate is None
    observe(profile, LOCAL, 10)
    assert profile.local.training_rate == pytest.approx(3200)
    assert profile.local.local_rate == pytest.approx(800)
    assert profile.local.local_cost == pytest.approx(0.005)
    seen = []
    while profile.phase is ProfilePhase.REMOTE:
        seen.append(profile.candidate)
        observe(profile, REMOTE, 10)
    assert seen == list(Candidate)
    assert profile.remote[Candidate.SHIP].remote_rate == pytest.approx(2400)
    assert profile.remote[Candidate.SHIP].remote_cost == pytest.approx(0.00025)
    # Lower = 2400 * 1.05 = 2520 > Upper = 2400: R / (L + R).
    assert profile.decision.ratio == pytest.approx(2400 / 3200)
    assert profile.candidate is Candidate.TINY_BATCH


def test_remote_workers_are_not_measured_where_training_does_not_wait():
    profile = OffloadProfile(tuple(Candidate), steps=10)
    observe(profile, ProfileWindow(1, 0.01, 0.0, 32, 0, 0.16), 10)
    assert profile.phase is ProfilePhase.DECIDED
    assert profile.decision.ratio == 0 and "does not wait" in profile.decision.reason


def test_what_the_phase_before_has_left_is_not_counted():
    profile = OffloadProfile(tuple(Candidate), steps=10, settling=4)
    observe(profile, ProfileWindow(1, 1.0, 0.9, 10**6, 0, 1.0), 4)
    observe(profile, LOCAL, 10)
    assert profile.local.local_rate == pytest.approx(800)


def test_a_phase_lasts_for_several_answers():
    profile = OffloadProfile([Candidate.MINI_BATCH], steps=10, local=STORED)
    slow = ProfileWindow(1, 0.01, 0.0, 8, 24, 0.04, 0.006, answer_seconds=0.2)
    observe(profile, slow, 99)
    assert profile.phase is ProfilePhase.REMOTE
    observe(profile, slow, 2)
    assert profile.phase is ProfilePhase.DECIDED


def test_metrics_that_were_stored_are_not_measured_again():
    known = {kind: RemoteMetrics(2400, 0.00025) for kind in Candidate}
    profile = OffloadProfile(tuple(Candidate), local=STORED, remote=known)
    assert profile.phase is ProfilePhase.DECIDED
    assert profile.decision.ratio == pytest.approx(0.75)
    del known[Candidate.SHIP]
    assert OffloadProfile(tuple(Candidate), local=STORED, remote=known).candidate is Candidate.SHIP


def test_windows_with_values_that_cannot_be_are_not_counted():
    profile = OffloadProfile([Candidate.TINY_BATCH], steps=10)
    for broken in (ProfileWindow(5, math.nan), ProfileWindow(5, math.inf), ProfileWindow(5, -1.0)):
        observe(profile, broken, 2)
    observe(profile, LOCAL, 10)
    assert profile.local.local_rate == pytest.approx(800)


@given(st.lists(WINDOWS, min_size=1), st.integers(0, 3))
def test_it_ends_in_a_finite_number_of_windows_whatever_it_observes(windows, settling):
    steps = 2
    profile = OffloadProfile(tuple(Candidate), steps=steps, settling=settling)
    phases = 1 + len(Candidate)
    for number in range(20 * (steps + settling) * phases):
        profile.observe(windows[number % len(windows)])
    assert profile.phase is ProfilePhase.DECIDED
    assert 0 <= profile.decision.ratio <= 1
    measured = [profile.local.training_rate, profile.local.local_rate, profile.local.local_cost]
    measured += [each.remote_rate for each in profile.remote.values()]
    measured += [each.remote_cost for each in profile.remote.values()]
    assert all(0 <= value < math.inf for value in measured)


def test_a_decision_stays():
    profile = OffloadProfile(tuple(Candidate), local=STORED, steps=1)
    observe(profile, REMOTE, 3)
    decision = profile.decision
    observe(profile, LOCAL, 100)
    assert profile.decision is decision
