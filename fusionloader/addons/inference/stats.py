"""The counters of a ``Preprocessor``, and a snapshot of them."""

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
        requests: answered requests, with results or errors; a list is one request. Cancelled
            requests are not counted.
        images: images of the answered requests.
        failed: requests that raised an error.
        cancelled: requests that were cancelled before they were answered.
        batches: batches that ``infer`` got; without ``infer`` the slots that submitted images
            shared.
        mean_batch_size: mean number of images in a batch; ``None`` before the first one.
        queued: images that were admitted and are not answered yet.
        latency_p50: median time from ``submit`` or the call to the answer, in seconds, within 5 %.
            It includes waiting for a place in the queue; ``None`` before the first answer.
        latency_p95: 95th percentile of that time.
        latency_p99: 99th percentile of that time.
        workers: counters of the worker processes.
        worker_restarts: number of workers that were replaced.
        worker_seconds: time that workers spent on images.
        pillow_images: images that Pillow decoded.
        read_bytes: bytes of encoded images.
        shared_memory_bytes: shared memory that is allocated now for images and rows.
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
        """Returns all fields as plain values, which JSON can represent."""
        return asdict(self)


class Counters:
    """Counters that several threads increment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latency = Histogram()
        self._counts = dict.fromkeys(("requests", "images", "failed", "cancelled", "batches"), 0)
        self._rows = 0

    def answered(self, seconds: float, failed: bool, images: int = 1) -> None:
        with self._lock:
            self._latency.add(seconds)
            self._counts["requests"] += 1
            self._counts["images"] += images
            self._counts["failed"] += failed

    def cancelled(self) -> None:
        with self._lock:
            self._counts["cancelled"] += 1

    def batch(self, images: int) -> None:
        with self._lock:
            self._counts["batches"] += 1
            self._rows += images

    def snapshot(self, queued: int, totals: WorkerTotals, resident: int) -> PreprocessorStats:
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
