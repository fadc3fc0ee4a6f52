"""Counters of workers over iterators that begin and end in any order."""

import dataclasses
import pickle
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader import _native
from fusionloader.data.deferred.counts import Counts
from fusionloader.observe.statistics.loader_statistics import Statistics
from fusionloader.observe.statistics.snapshot import LoaderStats, WorkerStats
from fusionloader.observe.statistics.worker_totals import AllWorkers, WorkerTotals, sum_records
from fusionloader.system.shm import cache_counts


class Iterator:
    """Counts of one iterator with one worker."""

    def __init__(self):
        self.ns = 0

    def work(self, ns):
        self.ns += ns

    def counted(self):
        seconds = self.ns * 1e-9
        worker = WorkerStats(0, 1, "native", self.ns, seconds, 0.5, 0)
        return WorkerTotals(
            made=self.ns, worker_seconds=seconds, part_seconds=[seconds], workers=(worker,)
        )


@given(st.integers(0, 1 << 32))
def test_no_counter_decreases_in_whatever_order_iterators_end(seed):
    draws, counters, running = random.Random(seed), AllWorkers(), []
    before = (0, 0.0, 0, 0.0)
    for _ in range(40):
        act = draws.choice(["begin", "work", "work", "end"])
        if act == "begin":
            running.append(Iterator())
            counters.begin(running[-1].counted)
        elif running and act == "work":
            draws.choice(running).work(draws.randrange(1_000_000))
        elif running:
            counters.end(running.pop(draws.randrange(len(running))).counted)
        told = counters.total()
        worker = told.workers[0] if told.workers else None
        now = (
            *(told.made, told.worker_seconds),
            *((worker.samples, worker.busy_seconds) if worker else (0, 0.0)),
        )
        assert all(later >= earlier for earlier, later in zip(before, now, strict=True))
        before = now


def test_sums_are_those_of_all_iterators():
    counters, iterators = AllWorkers(), [Iterator() for _ in range(3)]
    for number, iterator in enumerate(iterators):
        counters.begin(iterator.counted)
        iterator.work(10**number)
    counters.end(iterators[1].counted)
    assert (counters.ended.made, counters.total().made) == (10, 111)
    assert counters.total().workers[0].samples == 111


def test_iterators_that_end_at_the_same_time_are_all_counted():
    counters, first, second = AllWorkers(), Iterator(), Iterator()

    def counted_while_another_ends():
        counters.end(second.counted)
        return first.counted()

    for number, counted in enumerate([counted_while_another_ends, second.counted]):
        counters.begin(counted)
        [first, second][number].work(10**number)
    counters.end(counted_while_another_ends)
    assert (counters.ended.made, counters.total().made) == (11, 11)


def test_all_that_workers_count_comes_into_the_snapshot_by_its_name():
    counted = {field.name for field in dataclasses.fields(WorkerTotals)}
    shown = {field.name for field in dataclasses.fields(LoaderStats)}
    assert counted - shown == {
        *("made", "cache_counts", "copy_seconds", "wanted", "user_code"),
        *("cpu_ns", "run_delay_ns"),  # are in `processors`
        "images",  # are in `deferred_images`
    }


def test_deferred_images_are_counted_in_words_and_the_rest_is_sent(make_control_block):
    counted = Counts(files=5, left=Counter(cut=1), recorded=Counter(crop=3, cutout=2))
    counted.collated.update({"in place": 4, "copied": 1})
    expected = counted.as_dict()
    bench = make_control_block(2, 4)
    bench.workers[0].add_images(counted.take_words())
    assert counted.as_dict() == Counts(left=Counter(cut=1), recorded=Counter(cutout=2)).as_dict()
    sent = pickle.loads(pickle.dumps(counted))
    bench.workers[1].add_images(Counts(files=2).take_words())
    statistics = Statistics(deferred=sent)
    statistics.all_workers.begin(lambda: sum_records(bench.manager.workers(), []))
    assert statistics.images().as_dict() == expected | {"files": 7}
    assert not statistics.deferred.files
    with pytest.raises(IndexError, match="more counts than words"):
        bench.workers[0].add_images([0] * 100)


def test_gauges_are_those_of_the_later_one_and_sums_are_subtracted():
    before = WorkerTotals(made=3, slots=7, part_seconds=[1.0], read_bytes=10)
    both = before + WorkerTotals(made=4, slots=2, part_seconds=[0.5, 2.0], read_bytes=1)
    assert (both.made, both.slots, both.part_seconds, both.read_bytes) == (7, 2, [1.5, 2.0], 11)
    since = both - before
    assert (since.made, since.slots, since.part_seconds, since.read_bytes) == (4, 2, [0.5, 2.0], 1)


def test_every_count_of_a_record_is_added_up():
    known = {"samples", "busy_ns", *(f"cache_{name}" for name in cache_counts.NAMES)}
    counted = {field.name for field in dataclasses.fields(WorkerTotals)}
    assert set(_native.WorkerSnapshot.names()) <= known | counted
