"""Counters of workers over iterators that begin and end in any order."""

import random

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.observe.statistics.snapshot import WorkerStats
from fusionloader.observe.statistics.totals import MemoryTotals, WorkerTotals
from fusionloader.observe.statistics.worker_counters import AllWorkers


class Iterator:
    """Counts of one iterator with one worker."""

    def __init__(self):
        self.ns = 0

    def work(self, ns):
        self.ns += ns

    def counted(self):
        seconds = self.ns * 1e-9
        worker = WorkerStats(0, 1, "native", self.ns, seconds, 0.5, 0)
        sums = dict.fromkeys(
            (
                *("restarts", "borrowed_samples", "pillow_samples"),
                *("read_bytes", "in_flight"),
            ),
            0,
        )
        return WorkerTotals(
            samples=self.ns,
            busy_seconds=seconds,
            wanted=1,
            user_code=False,
            part_seconds=[seconds],
            workers=(worker,),
            memory=MemoryTotals(0, 0, 0, 0, 0.0),
            cache=[0] * 7,
            **sums,
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
            *(told.samples, told.busy_seconds),
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
    assert (counters.ended.samples, counters.total().samples) == (10, 111)
    assert counters.total().workers[0].samples == 111
