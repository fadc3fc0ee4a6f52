"""What exporters export of a snapshot: one row a metric, of which each makes its own kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fusionloader.observe.statistics.readings import (
    Read,
    bad_samples,
    cache_misses,
    deferred_images,
    gpu_mode,
    of_gpu_worker,
    of_gpu_worker_by_key,
    of_remote_workers,
    of_stages,
    of_stores,
    of_workers,
    one,
    percentiles,
    remote,
    remote_bytes,
    remote_left,
    shared_prep,
    shared_samples,
    tier_hits,
)

if TYPE_CHECKING:  # a snapshot has its scalars from here
    from fusionloader.observe.statistics.snapshot import LoaderStats, Scalar


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is counted.

    Attributes:
        name: with its unit at the end, as Prometheus has it.
        kind: whether it only grows, or is as it is now.
        unit: of its value.
        help: what it means, in a sentence.
        read: returns what a snapshot says of it.
        labels: names of what tells readings apart.
        scalar: name among the scalars, with the labels in braces; ``None``: it is none of them.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    read: Read
    labels: tuple[str, ...] = ()
    scalar: str | None = None

    def known(self, stats: LoaderStats) -> Iterator[tuple[dict[str, str], Scalar]]:
        """Yields labels and values of what is known."""
        for values, value in self.read(stats):
            if value is not None:
                yield dict(zip(self.labels, values, strict=True)), value


def scalars(stats: LoaderStats) -> Iterator[tuple[str, Scalar]]:
    """Yields the numbers to plot over training, by name."""
    for metric in METRICS:
        if metric.scalar is not None:
            for labels, value in metric.known(stats):
                yield metric.scalar.format(**labels), value


_WORKER = ("kind", "worker")

WAIT_HISTOGRAM = "wait_seconds"
WAIT_HELP = "Waits of training in next(), but those for first batches of epochs."

METRICS = (
    Metric(
        *("wait_ratio", "gauge", "ratio"),
        "Share of the time between two batches that training has waited, of all time.",
        one("wait_share"),
        scalar="wait_share",
    ),
    Metric(
        *("wait_percentile_seconds", "gauge", "seconds"),
        "Waits that so many in 100 do not exceed, of all time.",
        percentiles,
        ("percentile",),
        "wait/p{percentile}",
    ),
    Metric(
        *("step_seconds", "counter", "seconds"),
        "Time between two batches, waits included.",
        one("waits.step_seconds"),
    ),
    Metric(
        *("first_wait_seconds", "counter", "seconds"),
        "Waits for first batches of epochs.",
        one("waits.first_seconds"),
        scalar="wait/first_seconds",
    ),
    Metric(
        *("capacity_samples_per_second", "gauge", "samples/second"),
        "Samples that today's workers could make.",
        one("capacity"),
        scalar="capacity",
    ),
    Metric(
        *("stage_capacity_samples_per_second", "gauge", "samples/second"),
        "Samples that today's workers could take through one stage, if they did nothing else.",
        of_stages("capacity"),
        ("stage",),
        "capacity/{stage}",
    ),
    Metric(
        "epochs", "counter", "epochs", "Epochs that were finished.", one("epochs"), (), "epochs"
    ),
    Metric(
        "batches",
        "counter",
        "batches",
        "Mini-batches that were delivered.",
        one("batches"),
        (),
        "batches",
    ),
    Metric(
        "samples",
        "counter",
        "samples",
        "Samples that were delivered.",
        one("samples"),
        (),
        "samples",
    ),
    Metric(
        *("bad_samples", "counter", "samples"),
        "Samples that could not be made, by what became of them.",
        bad_samples,
        ("outcome",),
        "{outcome}",
    ),
    Metric(
        *("worker_busy_ratio", "gauge", "ratio"),
        "Share of the time since the workers were started that one has spent on samples.",
        of_workers("busy_share"),
        _WORKER,
        "worker/{kind}/{worker}/busy_share",
    ),
    Metric(
        *("worker_busy_seconds", "counter", "seconds"),
        "Time that workers of this number have spent on samples.",
        of_workers("busy_seconds"),
        _WORKER,
    ),
    Metric(
        *("worker_samples", "counter", "samples"),
        "Samples that workers of this number have made.",
        of_workers("samples"),
        _WORKER,
    ),
    Metric(
        *("worker_restarts", "counter", "restarts"),
        "How often the worker of this number was replaced.",
        of_workers("restarts"),
        _WORKER,
    ),
    Metric(
        *("replaced_workers", "counter", "workers"),
        "Workers that were replaced, whatever their number.",
        one("worker_restarts"),
        scalar="worker_restarts",
    ),
    Metric(
        *("borrowed_samples", "counter", "samples"),
        "Samples made by workers of other ranks.",
        one("borrowed_samples"),
        scalar="borrowed_samples",
    ),
    Metric(
        *("shared_batches", "counter", "batches"),
        "Mini-batches that came from a group of jobs.",
        shared_prep("shared_batches"),
        scalar="shared_prep/batches",
    ),
    Metric(
        *("shared_samples", "counter", "samples"),
        "Samples of a group of jobs, by whose workers have made them.",
        shared_samples,
        ("made",),
        "shared_prep/made_{made}",
    ),
    Metric(
        *("shared_wait_seconds", "counter", "seconds"),
        "Time that this job has waited for others to take their mini-batches.",
        shared_prep("waited_seconds"),
        scalar="shared_prep/waited_seconds",
    ),
    Metric(
        *("remote_samples", "counter", "samples"),
        "Samples made by workers on other machines.",
        remote("samples"),
        scalar="remote/samples",
    ),
    Metric(
        *("remote_left_tiny_batches", "counter", "tiny_batches"),
        "Tiny-batches that others made after all: lost on the way, or declined there.",
        remote_left,
        ("why",),
        "remote/{why}",
    ),
    Metric(
        *("remote_bytes", "counter", "bytes"),
        "Bytes that were exchanged with workers on other machines.",
        remote_bytes,
        ("direction",),
        "remote/bytes_{direction}",
    ),
    Metric(
        *("remote_cpu_seconds", "counter", "seconds"),
        "Processor time of this machine for what others made.",
        remote("cpu_seconds"),
        scalar="remote/cpu_seconds",
    ),
    Metric(
        *("remote_worker_samples", "counter", "samples"),
        "Samples made by one remote worker.",
        of_remote_workers("samples"),
        ("address",),
    ),
    Metric(
        *("pillow_samples", "counter", "samples"),
        "Samples of a compiled plan that Pillow decoded.",
        one("pillow_samples"),
        scalar="pillow_samples",
    ),
    Metric(
        *("cache_hits", "counter", "samples"),
        "Samples that came from the cache.",
        one("cache_hits"),
        scalar="cache_hits",
    ),
    Metric(
        *("cache_misses", "counter", "samples"),
        "Samples that were not in the cache.",
        cache_misses,
        scalar="cache_misses",
    ),
    Metric(
        *("cache_tier_hits", "counter", "samples"),
        "Samples that came from a tier of the cache.",
        tier_hits,
        ("tier",),
    ),
    Metric(
        *("read_bytes", "counter", "bytes"),
        "Bytes of files that were read, as they are stored.",
        one("read_bytes"),
        scalar="read_bytes",
    ),
    Metric(
        *("copied_bytes", "counter", "bytes"),
        "Bytes that were copied to a CUDA device.",
        one("copied_bytes"),
        scalar="copied_bytes",
    ),
    Metric(
        *("deferred_images", "counter", "images"),
        "Images that user code opened, by what has decoded them.",
        deferred_images,
        ("decoder",),
    ),
    Metric(
        *("in_flight_batches", "gauge", "batches"),
        "Mini-batches that are made now.",
        one("in_flight"),
        scalar="in_flight",
    ),
    Metric("slots", "gauge", "slots", "Slots for rows of mini-batches.", one("slots")),
    Metric(
        *("peak_shared_memory_bytes", "gauge", "bytes"),
        "The most that mini-batches have taken of shared memory.",
        one("shared_memory_bytes"),
        scalar="shared_memory_bytes",
    ),
    Metric(
        *("shared_memory_limit_bytes", "gauge", "bytes"),
        "What mini-batches in flight may take of shared memory.",
        one("shared_memory_limit_bytes"),
        scalar="shared_memory_limit_bytes",
    ),
    Metric(
        *("store_images", "gauge", "images"),
        "Images in a store: decoded cache, JPEG index, other tiers of a cache.",
        of_stores("images"),
        ("store",),
    ),
    Metric(
        *("store_bytes", "gauge", "bytes"),
        "Shared memory, or disk, that a store takes.",
        of_stores("bytes"),
        ("store",),
        "{store}/bytes",
    ),
    Metric(
        *("store_budget_bytes", "gauge", "bytes"),
        "Shared memory, or disk, that a store may take, with others of its cache.",
        of_stores("budget"),
        ("store",),
    ),
    Metric(
        *("gpu_worker_mode", "gauge", "mode"),
        "1 for the mode in which the GPU worker is.",
        gpu_mode,
        ("mode",),
    ),
    Metric(
        *("gpu_worker_rate_samples_per_second", "gauge", "samples/second"),
        "Rate of training that was measured in each mode of the GPU worker.",
        of_gpu_worker_by_key("rates"),
        ("mode",),
    ),
    Metric(
        *("gpu_worker_threshold_tiny_batches", "gauge", "tiny-batches"),
        "The last tiny-batches of each mini-batch, which are reserved for the GPU worker.",
        of_gpu_worker("threshold"),
        scalar="gpu_worker/threshold",
    ),
    Metric(
        *("gpu_worker_iterator_samples", "gauge", "samples"),
        "Samples that the GPU worker has made for the latest iterator.",
        of_gpu_worker("samples"),
        scalar="gpu_worker/samples",
    ),
    Metric(
        *("gpu_worker_refused_samples", "gauge", "samples"),
        "Samples that the GPU worker left to CPU workers, for the latest iterator.",
        of_gpu_worker_by_key("refused"),
        ("reason",),
    ),
)
"""Everything but the histogram of waits. Names begin with the exporter's prefix."""
