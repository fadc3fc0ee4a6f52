"""What workers write down while a trace is on, through both faces of the queue."""

import os

import pytest

from fusionloader._native import End, TinyBatchState

RING = 4096  # records, as in csrc/queue/trace_ring.hpp
SAMPLES, TINY = 6, 2


@pytest.fixture
def bench(make_control_block):
    """Two workers and a mini-batch."""
    made = make_control_block(2, 4)
    made.publish(0, SAMPLES, TINY)
    return made


def work(worker, claim, count=1):
    worker.begin_span()
    worker.begin_sample(claim, claim.first, claim.first * TINY)
    worker.end_samples(claim, claim.first, TINY * count)
    worker.add_part_seconds([0.25, 0.5, 0.0, 0.125, 1.0, 2.0])
    worker.add_reads(77, [0] * 7)
    worker.end_span(claim, claim.first, count)


def test_a_span_holds_what_was_counted_within_it(bench):
    bench.manager.set_tracing(True)
    worker = bench.workers[1]
    worker.announce(4711)
    worker.add_part_seconds([9.0] * 6)
    worker.add_reads(1000, [0] * 7)
    claim = worker.claim(End.SMALL, 0, 2)
    work(worker, claim, 2)
    (span,) = bench.manager.take_spans()
    assert (span.worker, span.pid, span.sequence, span.first, span.count) == (1, 4711, 0, 0, 2)
    assert (span.samples, span.read_bytes) == (4, 77)
    ns = (span.read_ns, span.decode_ns, span.python_ns, span.write_ns, span.augment_ns)
    assert ns == (250_000_000, 500_000_000, 0, 125_000_000, 3_000_000_000)
    assert span.begin_ns <= span.end_ns
    assert bench.manager.take_spans() == []


def test_the_rest_of_user_codes_time_is_pythons(bench):
    bench.manager.set_tracing(True)
    worker = bench.workers[0]
    claim = worker.claim(End.SMALL, 0, 1)
    worker.begin_span()
    worker.begin_sample(claim, 0, 0)
    worker.add_part_seconds([1e-9, 2e-9, 5.0])  # Python's own share may be counted, or not
    worker.end_samples(claim, 0, TINY)
    worker.end_span(claim, 0, 1, rest_is_python=True)
    (span,) = bench.manager.take_spans()
    assert (span.read_ns, span.decode_ns) == (1, 2)
    assert 0 <= span.python_ns <= span.end_ns - span.begin_ns


def test_without_a_trace_nothing_is_written_and_no_memory_taken(bench):
    before = os.fstat(bench.control_fd).st_blocks
    work(bench.workers[0], bench.workers[0].claim(End.SMALL, 0, 1))
    assert os.fstat(bench.control_fd).st_blocks == before
    bench.manager.set_tracing(True)
    assert bench.manager.take_spans() == []


def test_what_began_before_the_trace_or_ends_behind_it_is_none_of_it(bench):
    worker = bench.workers[0]
    claim = worker.claim(End.SMALL, 0, 3)
    worker.begin_span()
    bench.manager.set_tracing(True)
    worker.end_span(claim, 0, 1)
    worker.begin_span()
    bench.manager.set_tracing(False)
    worker.end_span(claim, 1, 1)
    assert bench.manager.take_spans() == []


def test_a_full_ring_counts_what_it_leaves_out(bench):
    bench.manager.set_tracing(True)
    worker = bench.workers[0]
    claim = worker.claim(End.SMALL, 0, 1)
    for _ in range(RING + 5):
        work(worker, claim)
    assert bench.manager.take_lost_spans() == 5
    assert len(bench.manager.take_spans()) == RING
    work(worker, claim)
    assert (len(bench.manager.take_spans()), bench.manager.take_lost_spans()) == (1, 0)


def test_a_new_trace_begins_with_empty_rings(bench):
    worker = bench.workers[0]
    claim = worker.claim(End.SMALL, 0, 1)
    bench.manager.set_tracing(True)
    for _ in range(RING + 1):
        work(worker, claim)
    bench.manager.set_tracing(True)
    assert (bench.manager.take_spans(), bench.manager.take_lost_spans()) == ([], 0)


def test_a_workers_successor_goes_on_in_its_ring(bench):
    bench.manager.set_tracing(True)
    first = bench.workers[0]
    claim = first.claim(End.SMALL, 0, 1)
    work(first, claim)
    first.begin_span()  # and dies
    bench.manager.take_back(0)
    second = bench.attach()
    claim = second.claim(End.SMALL, 0, 1)
    work(second, claim)
    second.finish(claim, claim.first, TinyBatchState.COMPLETED)
    assert [span.first for span in bench.manager.take_spans()] == [0, claim.first]
