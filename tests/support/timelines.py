"""Timelines without a loader: a small training, as a trace of it would be."""

from __future__ import annotations

import random

from fusionloader.observe.statistics.processor_use import ProcessorUse
from fusionloader.observe.trace.timeline import (
    CACHED,
    READY,
    THRESHOLD,
    Copy,
    CounterValue,
    Instant,
    Meta,
    Span,
    Step,
    Timeline,
    Worker,
)

_START = 1_000_000_000_000  # CLOCK_MONOTONIC
_UNIX = 1_700_000_000_000_000_000
_MS = 1_000_000
_TINY, _BATCH = 4, 16


def synthetic_timeline(
    steps: int = 20, workers: int = 2, *, starved: bool = True, seed: int = 0
) -> Timeline:
    """A training of ``steps`` batches of 16 samples with CPU workers and a GPU worker.

    ``starved``: training is fast, and waits for its batches; otherwise it computes for long.
    """
    draw = random.Random(seed)
    crew = (*(Worker(n, "cpu") for n in range(workers)), Worker(workers, "gpu"))
    spans, ends = _spans(draw, steps, crew)
    training = (2 if starved else 60) * _MS
    made, now = [], _START
    copies, counters, instants = [], [], []
    for number, end in enumerate(ends):
        asked = now + training
        delivered = max(asked, end) + _MS // 2
        began = None if number % 10 else now + training // 2
        made.append(Step(0, number // 10, number % 10, _BATCH, asked, end, delivered, began))
        copies.append(
            Copy(0, number // 10, number % 10, 600_000, end - _MS, max(asked, end) + _MS // 4)
        )
        ready = sum(end <= delivered for end in ends[number + 1 :])
        counters.append(CounterValue(delivered, READY, ready))
        counters.append(CounterValue(delivered, CACHED, (number + 1) * _BATCH))
        if number % 5 == 0:
            counters.append(CounterValue(delivered, THRESHOLD, number // 5))
            instants.append(Instant(delivered, "threshold", f"threshold {number // 5}"))
        now = delivered
    instants.append(Instant(now, "restart", "worker 0 was killed by SIGKILL", 0))
    use = ProcessorUse(cores=4.0, quota=None, seconds=1.0, busy_seconds=1.5, cpu_seconds=1.25)
    meta = Meta(4321, 0, _BATCH, _TINY, _START, now + _MS, _UNIX, crew, processors=use)
    return Timeline.in_order(meta, spans, made, copies, instants, counters)


def _spans(
    draw: random.Random, steps: int, crew: tuple[Worker, ...]
) -> tuple[list[Span], list[int]]:
    """Returns what the workers do one after the other, and when each mini-batch is complete."""
    free = {worker.number: _START for worker in crew}
    spans, ends = [], []
    for number in range(steps):
        last = 0
        for tiny_batch in range(_BATCH // _TINY):
            worker = min(crew, key=lambda each: free[each.number])
            nbytes = (20_000 + 30_000 * tiny_batch + draw.randrange(20_000)) * _TINY
            decode = nbytes * 60
            parts = (
                {}
                if worker.kind == "gpu"
                else {"read_ns": _MS // 10, "decode_ns": decode, "augment_ns": decode // 3}
            )
            begin = free[worker.number]
            end = begin + decode * 3 // 2 + _MS // 5
            spans.append(
                Span(
                    worker.number,
                    5000 + worker.number,
                    0,
                    number // 10,
                    number % 10,
                    tiny_batch,
                    1,
                    _TINY,
                    nbytes,
                    begin,
                    end,
                    **parts,
                )
            )
            free[worker.number] = end + draw.randrange(_MS // 10)
            last = max(last, end)
        ends.append(last)
    return spans, ends
