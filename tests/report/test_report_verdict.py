"""What a report says first, for trainings that are limited by one thing each."""

from dataclasses import replace

import pytest
from support.training_timelines import MS, span, steps_of, timeline

from fusionloader.cli.drawn_report.analysis.verdict import verdict_on
from fusionloader.cli.drawn_report.analysis.waits import waits_of
from fusionloader.cli.drawn_report.analysis.work import work_of
from fusionloader.cli.drawn_report.page import report_page
from fusionloader.observe.statistics.processor_use import ProcessorUse
from fusionloader.observe.trace.timeline import CACHED, CounterValue, Timeline


def verdict(found: Timeline):
    return verdict_on(waits_of(found.steps), work_of(found), found)


def plain(*sentences: str) -> str:
    return " ".join(sentences).replace("\N{NO-BREAK SPACE}", " ")


def busy(until: float, **parts: float) -> list:
    """Both workers, without a pause; ``parts`` are ms of each 10 ms."""
    return [
        span(worker, begin, begin + 10, 400_000, **parts)
        for worker in (0, 1)
        for begin in range(0, int(until), 10)
    ]


def test_a_training_that_hardly_waits_is_told_that_nothing_need_be_done():
    found = verdict(timeline(steps_of([(0.1, 0)] * 10), busy(110)))
    assert (found.tone, found.remedy) == ("good", "")
    assert found.share == pytest.approx(0.01, rel=0.02)
    assert plain(found.headline) == (
        "Training's own step is the limit: it waits less than 1 % of its time."
    )
    assert "Workers could make 800 samples a second, training takes 800" in plain(*found.reasons)


def test_workers_that_are_busy_while_training_waits_are_what_limits():
    steps = steps_of([(10, 9)] * 10)
    found = verdict(timeline(steps, busy(210, read=1, decode=7, augment=1)))
    assert (found.tone, found.share) == ("poor", pytest.approx(0.5))
    assert plain(found.headline) == (
        "Training waits 50 % of its time: workers spend 70 % of their time on decoding."
    )
    said = plain(*found.reasons)
    assert "100 % of the workers' time was busy while training waited" in said
    assert "decoding: 1.75 ms of 2.5 ms" in said


def with_processors(found: Timeline, **values: float) -> Timeline:
    use = ProcessorUse(
        **{"cores": 2.0, "quota": None, "seconds": 1.0, "busy_seconds": 2.0, **values}
    )
    return replace(found, meta=replace(found.meta, processors=use))


def test_workers_without_cores_are_not_said_to_be_slow_at_reading():
    found = timeline(steps_of([(10, 9)] * 10), busy(210, read=9))
    said = verdict(with_processors(found, cpu_seconds=0.4, delay_seconds=1.6))
    assert plain(said.headline) == (
        "Training waits 50 % of its time: workers got 20 % of a core each, and other processes "
        "take the rest."
    )
    assert "reading" not in plain(*said.reasons) and "storage" not in said.remedy
    assert "Free cores help" in said.remedy and "would keep up" not in said.remedy


def test_a_trace_without_workers_names_a_quota_that_throttles():
    found = timeline(steps_of([(10, None)] * 5), workers=(), steps_only="torch's own loop")
    throttled = {"quota": 0.5, "periods": 10, "throttled_periods": 9, "busy_seconds": 0.0}
    said = verdict(with_processors(found, **throttled))
    assert "throttled to its CPU quota of 0.5 cores, in 90 % of the periods" in plain(said.headline)


@pytest.mark.parametrize(
    ("cpu", "cores", "helps"), [(1.9, 2.0, False), (1.9, 4.0, True), (0.1, 2.0, True)]
)
def test_more_workers_than_there_are_cores_for_are_not_advised(cpu, cores, helps):
    # Training takes 8 samples in 5 ms; a worker makes 4 in 10.
    found = timeline(steps_of([(10, 10)] * 10, training=5), busy(160, python=9))
    said = verdict(with_processors(found, cores=cores, cpu_seconds=cpu))
    assert "About 4 workers instead of 2 would keep up" in said.remedy
    assert "`loader.explain()`" in said.remedy
    assert ("; the 2 cores here are enough for 2." in said.remedy) != helps
    assert ("a core of its own" in said.remedy) == (cpu > 1)


def test_the_time_from_iter_is_said_with_the_facts():
    first, *others = steps_of([(100, 100), (1, 1), (1, 1)])
    first = replace(first, began_ns=first.asked_ns - 1_400 * MS)
    found = timeline([first, *others], busy(130))
    assert waits_of(found.steps).startup_seconds.tolist() == [1.5]
    assert (
        "1.5\N{NO-BREAK SPACE}s" in report_page(found, "run").split("longest from iter()")[1][:200]
    )


@pytest.mark.parametrize("kept", [True, False])
def test_a_cache_is_advised_where_there_is_none(kept):
    found = timeline(steps_of([(10, 10)] * 10), busy(210, decode=9))
    counters = [CounterValue(found.meta.begin_ns, CACHED, 3)] if kept else []
    again = Timeline.in_order(found.meta, found.spans, found.steps, (), (), counters)
    assert ("DecodedCache" in verdict(again).remedy) == (not kept)


def test_batches_that_lie_ready_point_to_delivery():
    found = verdict(timeline(steps_of([(10, 1)] * 10), busy(210)))
    assert found.headline.endswith("batches that workers have finished are delivered late.")
    assert "90 % of the waiting is for delivery" in plain(*found.reasons)


def test_idle_workers_while_training_waits_point_to_late_ones():
    waits = [(0.2, 0.2)] * 39 + [(90, 90)]
    one = [span(0, begin, begin + 10) for begin in range(0, 500, 10)]
    found = verdict(timeline(steps_of(waits), one))
    assert "some workers finish late while others have nothing to do." in found.headline
    said = plain(*found.reasons)
    assert "only 50 % of the CPU workers' time was busy" in said
    assert "of the waiting is in the 5 % of the steps" in said


def test_the_first_batch_of_an_epoch_is_counted_apart():
    steps = [*steps_of([(500, 500), (1, 1)]), *steps_of([(300, 300), (1, 1)], epoch=1)]
    waits = waits_of(steps)
    assert waits.first_seconds.tolist() == [0.5, 0.3]
    assert waits.share == pytest.approx(1 / 11)


def test_an_epoch_that_is_begun_again_has_a_first_batch_again():
    again = [replace(step, batch=step.batch % 2) for step in steps_of([(1, 1)] * 4)]
    assert waits_of(again).is_first.tolist() == [True, False, True, False]


def test_two_iterators_at_once_have_steps_of_their_own():
    steps = [replace(step, iterator=n % 2) for n, step in enumerate(steps_of([(1, 1)] * 6))]
    waits = waits_of(steps)
    assert waits.is_first.tolist() == [True, True, False, False, False, False]
    # Between its own returns each has waited 1 ms of 22.
    assert waits.share == pytest.approx(1 / 22)


def test_one_step_is_too_short_to_tell():
    found = verdict(timeline(steps_of([(20, 20)])))
    assert (found.share, found.tone) == (None, "unknown")
    assert "Too short" in found.headline


def test_without_workers_the_share_is_told_and_no_cause():
    found = verdict(timeline(steps_of([(10, None)] * 5), workers=(), steps_only="torch's own loop"))
    assert found.share == pytest.approx(0.5)
    assert "(torch's own loop): what training waits for is not known" in found.reasons[0]
    assert found.remedy == ""
