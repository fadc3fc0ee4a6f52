"""The parts of a report's analysis, against counting by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.timelines import synthetic_timeline
from support.training_timelines import MS, START, meta, span, steps_of, timeline

from fusionloader.cli.drawn_report.analysis import counters, windows, words
from fusionloader.cli.drawn_report.analysis.activity import MOST_CELLS, TRAINING, activity_of
from fusionloader.cli.drawn_report.analysis.busy_time import BusyTime
from fusionloader.cli.drawn_report.analysis.costs import costs_of
from fusionloader.cli.drawn_report.analysis.waits import waits_of
from fusionloader.cli.drawn_report.analysis.work import work_of
from fusionloader.observe.trace.timeline import CounterValue, Timeline, Worker

moments = st.integers(0, 50)
intervals = st.lists(st.tuples(moments, moments).map(lambda pair: tuple(sorted(pair))), max_size=12)


@given(intervals, moments, moments)
def test_busy_time_counts_every_moment_once(found, first, second):
    begin, end = sorted((first, second))
    by_hand = sum(any(b <= moment < e for b, e in found) for moment in range(begin, end))
    assert BusyTime(found).between(begin, end) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("said", "words_for_it"),
    [
        (words.duration(0.0000123), "12.3 µs"),
        (words.duration(0.41), "410 ms"),
        (words.duration(0), "0 s"),
        (words.duration(1234), "1,234 s"),
        (words.percent(0.004), "less than 1 %"),
        (words.percent(0.416), "42 %"),
        (words.size(78_400), "78.4 kB"),
        (words.size(3.2e9), "3.2 GB"),
    ],
)
def test_numbers_are_said_as_people_read_them(said, words_for_it):
    assert said.replace("\N{NO-BREAK SPACE}", " ") == words_for_it


def test_the_time_of_a_sample_is_divided_without_rest():
    found = timeline(steps_of([(1, 1)] * 3), [span(0, 0, 8, read=1, decode=5), span(1, 2, 10)])
    (cpu,) = work_of(found).kinds
    assert {stage.name: stage.seconds for stage in cpu.stages} == {
        "read": 0.001,
        "decode": 0.005,
        "other": pytest.approx(0.010),
    }
    assert cpu.capacity == pytest.approx(2 * 8 / 0.016)


def test_a_worker_that_the_trace_does_not_name_is_shown():
    found = timeline(steps_of([(1, 1)] * 2), [span(5, 0, 8)])
    assert [each.worker.number for each in work_of(found).workers] == [0, 1, 5]


def test_slots_that_nobody_borrowed_are_left_out():
    crew = (Worker(0, "cpu"), Worker(1, "borrowed"), Worker(2, "borrowed"))
    found = timeline(steps_of([(1, 1)] * 2), [span(2, 0, 8)], workers=crew)
    assert [each.worker.name for each in work_of(found).workers] == [
        "worker 0",
        "borrowed worker 2",
    ]


@pytest.mark.parametrize("workers", [1, 16, 300])
def test_shares_over_time_add_up_and_stay_few(workers):
    found = synthetic_timeline(30, workers)
    work = work_of(found)
    activity = activity_of(work, found.steps)
    lengths = np.diff(activity.edges)
    assert sum(map(len, activity.rows.values())) <= max(MOST_CELLS, 20 * (workers + 2))
    for each in work.workers:
        busy = float((activity.rows[each.worker.name] * lengths).sum())
        assert busy == pytest.approx(each.busy_share * work.seconds, abs=1e-9)
    waited = sum(step.wait_ns for step in found.steps) / 1e9
    assert float((activity.rows[TRAINING] * lengths).sum()) == pytest.approx(waited)


def test_the_longest_wait_is_looked_at_first_with_all_that_workers_did_then():
    waits = [(1, 1)] * 20 + [(50, 50)] + [(1, 1)] * 20
    spans = [span(n % 2, n * 10, n * 10 + 10) for n in range(48)]
    found = timeline(steps_of(waits), spans)
    first, *others = windows.windows_of(found, waits_of(found.steps))
    assert "batch 20, waited 50" in first.title
    long = found.steps[20]
    inside = [s for s in spans if s.begin_ns < long.delivered_ns and long.asked_ns < s.end_ns]
    assert set(inside) <= set(first.spans)
    bounds = sorted((each.begin_ns, each.end_ns) for each in (first, *others))
    assert all(end <= begin for (_, end), (begin, _) in zip(bounds, bounds[1:], strict=False))


def test_a_window_keeps_what_led_to_the_wait_when_too_much_happened():
    spans = [span(n % 2, n * 0.01, n * 0.01 + 0.01) for n in range(9000)]
    found = timeline(steps_of([(1, 1), (40, 40)]), spans)
    first = windows.windows_of(found, waits_of(found.steps))[0]
    assert len(first.spans) == windows.MOST_SPANS
    ends = [s.end_ns for s in first.spans]
    assert min(ends) < found.steps[1].delivered_ns < max(ends)


def test_costs_count_every_sample_and_tell_large_files_from_small_ones():
    spans = [span(0, n, n + 0.5 + n % 5, 40_000 * (1 + n % 5)) for n in range(50)]
    costs = costs_of(timeline(spans=spans))
    assert costs is not None
    assert costs.counts.sum() == costs.samples == 200
    assert costs.classes[0].kilobytes == pytest.approx(10)
    assert costs.classes[-1].kilobytes == pytest.approx(50)
    assert costs.classes[-1].milliseconds > 2 * costs.classes[0].milliseconds


def test_files_of_one_size_can_be_drawn():
    costs = costs_of(timeline(spans=[span(0, n, n + 1, 4000) for n in range(5)]))
    assert costs is not None
    assert costs.counts.sum() == 20


def test_costs_without_sizes_are_not_known():
    assert costs_of(timeline(spans=[span(0, 0, 1)])) is None


def test_a_long_counter_is_shown_as_means_over_time():
    seen = [CounterValue(START + n * MS, "ready", n % 2) for n in range(2 * counters.MOST_POINTS)]
    found = Timeline(meta(), counters=tuple(seen))
    (counter,) = counters.counters_of(found, START + 2 * counters.MOST_POINTS * MS)
    assert counter.is_mean
    assert len(counter.values) == counters.MOST_POINTS
    assert counter.values == pytest.approx(0.5)
    assert (counter.least, counter.most, counter.last) == (0, 1, 1)
