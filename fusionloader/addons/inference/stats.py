"""What is counted of a ``Preprocessor``, and the typed snapshot of it."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass

from fusionloader.observe.statistics.histogram import Histogram, quantiles
from fusionloader.observe.statistics.snapshot import WorkerStats
from fusionloader.observe.statistics.worker_totals import WorkerTotals


@dataclass(frozen=True, slots=True)
class PreprocessorStats:
    """Counters since the ``Preprocessor`` was made; seconds are wall time.

    Attributes:
        requests: that were answered, a list as one: results and errors, not those cancelled.
        images: in them.
        failed: requests that raised.
        cancelled: that were cancelled before they were answered.
        batches: that ``infer`` got, or without it the slots of rows that submitted images shared.
        mean_batch_size: images in one of these; ``None`` before the first one.
        queued: images that were admitted and are not answered yet.
        latency_p50: seconds from ``submit`` or the call to the answer, that half of the requests do
            not exceed, within 5 %; ``None`` before the first one, as are the others. Waiting for a
            place in the queue counts.
        latency_p95: the same for 95 in 100.
        latency_p99: the same for 99 in 100.
        workers: the processes.
        worker_restarts: workers that were replaced.
        worker_seconds: that they spent on images.
        pillow_images: that Pillow decoded.
        read_bytes: of encoded images.
        shared_memory_bytes: that are allocated now for images and rows.
    """

    requests: int
    images: int
    failed: int
    cancelled: int
    batches: int
    mean_batch_size: float | None
    queued: int
    latency_p50: float | None
    latency_p95: float | None
    latency_p99: float | None
    workers: tuple[WorkerStats, ...]
    worker_restarts: int
    worker_seconds: float
    pillow_images: int
    read_bytes: int
    shared_memory_bytes: int

    def as_dict(self) -> dict[str, object]:
        """Returns everything as plain values, for any reader of JSON."""
        return asdict(self)


class Counters:
    """The counters, which several threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latency = Histogram()
        self._counts = dict.fromkeys(("requests", "images", "failed", "cancelled", "batches"), 0)
        self._rows = 0

    def answered(self, seconds: float, failed: bool, images: int = 1) -> None:
        """Counts a request and the time that it took."""
        with self._lock:
            self._latency.add(seconds)
            self._counts["requests"] += 1
            self._counts["images"] += images
            self._counts["failed"] += failed

    def cancelled(self) -> None:
        """Counts a request that was cancelled."""
        with self._lock:
            self._counts["cancelled"] += 1

    def batch(self, images: int) -> None:
        """Counts a dynamic batch."""
        with self._lock:
            self._counts["batches"] += 1
            self._rows += images

    def snapshot(self, queued: int, totals: WorkerTotals, resident: int) -> PreprocessorStats:
        """Returns everything that was counted until now."""
        with self._lock:
            p50, p95, p99 = quantiles(self._latency.counts(), (0.5, 0.95, 0.99))
            batches = self._counts["batches"]
            return PreprocessorStats(
                mean_batch_size=self._rows / batches if batches else None,
                queued=queued,
                latency_p50=p50,
                latency_p95=p95,
                latency_p99=p99,
                workers=totals.workers,
                worker_restarts=totals.worker_restarts,
                worker_seconds=totals.worker_seconds,
                pillow_images=totals.pillow_samples,
                read_bytes=totals.read_bytes,
                shared_memory_bytes=resident,
                **self._counts,
            )
