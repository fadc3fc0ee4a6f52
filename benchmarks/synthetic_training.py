"""A timeline of a training that never ran: as long, and with as many workers, as one asks for."""

from __future__ import annotations

import heapq
import random

from fusionloader.trace.timeline import (
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

_MS = 1_000_000
_START = 1_000_000 * _MS
_UNIX = 1_750_000_000_000 * _MS
_BATCH, _TINY, _EPOCH = 256, 4, 250
_MEGABYTES_PER_SECOND = 400


def synthetic_timeline(steps: int, workers: int, training_ms: float = 20.0) -> Timeline:
    """Returns a training of ``steps`` batches of 256 images, with CPU workers and a GPU worker.

    Files have log-normal sizes around 78 kB. Two mini-batches a worker are ahead of training at
    most, and training takes ``training_ms`` for a step.
    """
    draw = random.Random(0)
    crew = (*(Worker(number, "cpu") for number in range(workers)), Worker(workers, "gpu"))
    free = [(_START, worker.number) for worker in crew]
    spans: list[Span] = []
    made: list[Step] = []
    copies: list[Copy] = []
    counters: list[CounterValue] = []
    instants: list[Instant] = []
    complete: list[int] = []
    for number in range(steps):
        ahead = number - 2 * workers
        publish = made[ahead].delivered_ns if ahead >= 0 else _START
        end = 0
        for span in _mini_batch(draw, number, free, publish, workers):
            spans.append(span)
            end = max(end, span.end_ns)
        complete.append(end)
        last = made[-1].delivered_ns if made else _START
        asked = last + int(training_ms * _MS * draw.uniform(0.9, 1.1)) * bool(made)
        begin = max(end - 2 * _MS, asked)
        delivered = max(asked, end) + draw.randrange(_MS // 4, _MS)
        epoch, batch = divmod(number, _EPOCH)
        made.append(Step(0, epoch, batch, _BATCH, asked, end, delivered))
        copies.append(Copy(0, epoch, batch, _BATCH * 602_112, min(begin, delivered), delivered))
        counters.append(CounterValue(delivered, READY, max(0, (last - end) // (20 * _MS))))
        counters.append(CounterValue(delivered, CACHED, min(number, _EPOCH) * _BATCH))
        if number % 40 == 0:
            threshold = draw.randrange(6)
            counters.append(CounterValue(delivered, THRESHOLD, threshold))
            instants.append(Instant(delivered, "threshold", f"threshold {threshold}"))
        if number % 400 == 399:
            text = "worker 3 was killed by SIGKILL; 1 tiny-batch is made again"
            instants.append(Instant(delivered, "restart", text, 3))
    end_ns = made[-1].delivered_ns + _MS
    meta = Meta(4321, 0, _BATCH, _TINY, _START, end_ns, _UNIX, crew)
    spans.sort(key=lambda span: span.begin_ns)
    return Timeline(
        meta, tuple(spans), tuple(made), tuple(copies), tuple(instants), tuple(counters)
    )


def _mini_batch(
    draw: random.Random, number: int, free: list[tuple[int, int]], publish: int, gpu: int
) -> list[Span]:
    """Returns its spans: whoever is free next claims, the GPU worker eight tiny-batches at once."""
    count = _BATCH // _TINY
    sizes = sorted(int(78_000 * draw.lognormvariate(0, 0.5)) * _TINY for _ in range(count))
    low, high = 0, count
    spans = []
    while low < high:
        begin, worker = heapq.heappop(free)
        begin = max(begin, publish)
        if worker == gpu:
            few = min(8, high - low)
            high -= few
            span = _device_span(number, high, few, sum(sizes[high : high + few]), begin, gpu)
        else:
            span = _span(draw, number, low, sizes[low], begin, worker)
            low += 1
        heapq.heappush(free, (span.end_ns + draw.randrange(_MS // 20), worker))
        spans.append(span)
    return spans


def _span(
    draw: random.Random, number: int, first: int, nbytes: int, begin: int, worker: int
) -> Span:
    epoch, batch = divmod(number, _EPOCH)
    read = int(nbytes * 1e3 / _MEGABYTES_PER_SECOND)
    decode = int(nbytes * 8 * draw.lognormvariate(0, 0.15))
    augment = _TINY * _MS // 8
    end = begin + read + decode + augment + _MS // 20
    return Span(
        worker, 5000 + worker, 0, epoch, batch, first, 1, _TINY, nbytes, begin, end, read, decode,
        augment,
    )  # fmt: skip


def _device_span(number: int, first: int, count: int, nbytes: int, begin: int, gpu: int) -> Span:
    epoch, batch = divmod(number, _EPOCH)
    end = begin + 12 * _MS + int(nbytes * 1.5)
    samples = count * _TINY
    return Span(gpu, 5999, 0, epoch, batch, first, count, samples, nbytes, begin, end)
