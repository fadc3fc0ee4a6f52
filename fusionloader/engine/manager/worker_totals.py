"""What the records of workers in a control block add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from fusionloader import _native
from fusionloader.observe.statistics.snapshot import AnyWorkerKind, WorkerStats
from fusionloader.observe.statistics.totals import MemoryTotals, WorkerTotals


def totals_of(
    records: Sequence[_native.WorkerSnapshot],
    workers: Sequence[WorkerStats],
    restarts: int,
    memory: MemoryTotals,
    in_flight: int,
    wanted: int,
    user_code: bool,
) -> WorkerTotals:
    """Returns the sums over ``records`` with what is known besides, see ``WorkerTotals``."""
    parts = zip_longest(*(record.part_seconds for record in records), fillvalue=0.0)
    return WorkerTotals(
        samples=sum(record.samples for record in records),
        restarts=restarts,
        borrowed_samples=sum(each.samples for each in workers if each.kind == "borrowed"),
        memory=memory,
        busy_seconds=sum(record.busy_seconds for record in records),
        pillow_samples=sum(record.pillow_samples for record in records),
        read_bytes=sum(record.read_bytes for record in records),
        cache=[sum(counts) for counts in zip(*(r.cache_counts for r in records), strict=True)],
        in_flight=in_flight,
        wanted=wanted,
        user_code=user_code,
        part_seconds=[sum(part) for part in parts],
        workers=tuple(workers),
    )


def stats_of(
    number: int,
    record: _native.WorkerSnapshot,
    kind: AnyWorkerKind,
    elapsed: float,
    restarts: int,
) -> WorkerStats:
    """Returns what one worker has counted, ``elapsed`` seconds after the start."""
    share = record.busy_seconds / elapsed
    return WorkerStats(
        number, record.pid, kind, record.samples, record.busy_seconds, share, restarts
    )


def since(before: WorkerTotals, now: WorkerTotals) -> WorkerTotals:
    """Returns what records have counted since, that others have used before."""
    earlier = {worker.number: worker for worker in before.workers}
    workers = tuple(_since(earlier.get(each.number), each) for each in now.workers)
    parts = zip_longest(now.part_seconds, before.part_seconds, fillvalue=0.0)
    return replace(
        now,
        samples=now.samples - before.samples,
        busy_seconds=now.busy_seconds - before.busy_seconds,
        pillow_samples=now.pillow_samples - before.pillow_samples,
        read_bytes=now.read_bytes - before.read_bytes,
        cache=[after - early for after, early in zip(now.cache, before.cache, strict=True)],
        part_seconds=[after - early for after, early in parts],
        workers=workers,
    )


def _since(before: WorkerStats | None, now: WorkerStats) -> WorkerStats:
    if before is None:
        return now
    return replace(
        now,
        samples=now.samples - before.samples,
        busy_seconds=now.busy_seconds - before.busy_seconds,
        busy_share=max(now.busy_share - before.busy_share, 0.0),
    )
