"""The table of counters: what is counted of a loader, and all that is exported of a snapshot.

A row is a metric of each exporter, a row of ``docs/observe/metrics.md``, and one of the scalars if
it has a name among them. Fields of a snapshot are read here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:  # a snapshot has its scalars from here
    from fusionloader.cache.store_stats import StoreStats
    from fusionloader.observe.statistics.cache_stats import CacheStats
    from fusionloader.observe.statistics.remote_stats import RemoteStats
    from fusionloader.observe.statistics.shared_prep import SharedPrepStats
    from fusionloader.observe.statistics.snapshot import LoaderStats, Scalar, WorkerStats
    from fusionloader.observe.statistics.stages import StageStats

Labels = str | tuple[str, ...]
Reading = int | float | None | Mapping[Labels, int | float | None]
"""A value, or values by those of the labels; ``None`` where it is not known."""

Read = Callable[["LoaderStats"], Reading]


@dataclass(frozen=True, slots=True)
class Counter:
    """One thing that is counted.

    Attributes:
        name: exported name, with the unit at the end, as Prometheus has it.
        unit: unit of the value.
        kind: ``"sum"`` if it only grows, ``"gauge"`` if it is as it is now.
        help: its meaning, in a sentence.
        source: path of an attribute of the snapshot, or a function that reads a snapshot.
        labels: names of what tells readings apart.
        scalar: name among the scalars, with the labels in braces; ``None`` if it is none of them.
    """

    name: str
    unit: str
    kind: Literal["sum", "gauge"]
    help: str
    source: str | Read
    labels: tuple[str, ...] = ()
    scalar: str | None = None

    def readings(self, stats: LoaderStats) -> Iterator[tuple[dict[str, str], Scalar]]:
        """Yields labels and values of what is known."""
        read: Any = attrgetter(self.source) if isinstance(self.source, str) else self.source
        found = read(stats)
        for labels, value in found.items() if isinstance(found, Mapping) else [((), found)]:
            if value is not None:
                values = (labels,) if isinstance(labels, str) else labels
                yield dict(zip(self.labels, values, strict=True)), value


def scalars(stats: LoaderStats) -> Iterator[tuple[str, Scalar]]:
    """Yields the numbers to plot over training, by name."""
    for counter in COUNTERS:
        if counter.scalar is not None:
            for labels, value in counter.readings(stats):
                yield counter.scalar.format(**labels), value


# ---- sources in parts of a snapshot, which may be missing ----------------------------------------


def _by_stage(read: Callable[[StageStats], Scalar]) -> Read:
    return lambda stats: {stage.name: read(stage) for stage in stats.stages}


def _by_worker(read: Callable[[WorkerStats], Scalar]) -> Read:
    return lambda stats: {(each.kind, str(each.number)): read(each) for each in stats.workers}


def _cache(read: Callable[[CacheStats], Reading]) -> Read:
    return lambda stats: None if stats.cache is None else read(stats.cache)


def _shared(read: Callable[[SharedPrepStats], Reading]) -> Read:
    return lambda stats: None if stats.shared_prep is None else read(stats.shared_prep)


def _remote(read: Callable[[RemoteStats], Reading]) -> Read:
    return lambda stats: None if stats.remote is None else read(stats.remote)


def _gpu(name: str) -> Read:
    """Returns what reads a value of the GPU worker, or values by key."""
    return lambda stats: cast("Reading", stats.gpu_worker.get(name))


def _by_store(read: Callable[[StoreStats], Scalar]) -> Read:
    def read_all(stats: LoaderStats) -> Reading:
        stores = {"decoded_cache": stats.decoded_cache, "jpeg_index": stats.jpeg_index}
        stores |= {} if stats.cache is None else stats.cache.other_stores()
        return {name: read(store) for name, store in stores.items() if store is not None}

    return read_all


def _deferred(stats: LoaderStats) -> Reading:
    images: Mapping[str, Any] = stats.deferred_images
    return {"native": images["files"], "pillow": sum(images["left_to_pillow"].values())}


# ---- the table -----------------------------------------------------------------------------------

_WORKER = ("kind", "worker")
_RATE = "samples/second"

WAIT_HISTOGRAM = "wait_seconds"
WAIT_HELP = "Waits of training in next(), except for the first batches of epochs."

COUNTERS = (
    Counter("wait_ratio", "ratio", "gauge",
            "Share of the time between two batches that training has waited, of all time.",
            "wait_share", scalar="wait_share"),
    Counter("wait_percentile_seconds", "seconds", "gauge",
            "Waits that so many in 100 do not exceed, of all time.",
            lambda s: {"50": s.waits.p50, "95": s.waits.p95, "99": s.waits.p99},
            ("percentile",), "wait/p{percentile}"),
    Counter("step_seconds", "seconds", "sum", "Time between two batches, waits included.",
            "waits.step_seconds"),
    Counter("first_wait_seconds", "seconds", "sum", "Waits for first batches of epochs.",
            "waits.first_seconds", scalar="wait/first_seconds"),
    Counter("iter_seconds", "seconds", "sum",
            "Time in iter(loader): start of workers, sampler, first work for them.",
            "waits.iter_seconds", scalar="wait/iter_seconds"),
    Counter("capacity_samples_per_second", _RATE, "gauge",
            "Samples that today's workers could make.", "capacity", scalar="capacity"),
    Counter("stage_capacity_samples_per_second", _RATE, "gauge",
            "Samples that today's workers could take through one stage, if they did nothing else.",
            _by_stage(lambda stage: stage.capacity), ("stage",), "capacity/{stage}"),
    Counter("epochs", "epochs", "sum", "Epochs that were finished.", "epochs", scalar="epochs"),
    Counter("batches", "batches", "sum", "Mini-batches that were delivered.",
            "batches", scalar="batches"),
    Counter("samples", "samples", "sum", "Samples that were delivered.",
            "samples", scalar="samples"),
    Counter("bad_samples", "samples", "sum",
            "Samples that could not be made, by what became of them.",
            lambda s: {"skipped": s.skipped, "substituted": s.substituted},
            ("outcome",), "{outcome}"),
    Counter("worker_busy_ratio", "ratio", "gauge",
            "Share of the time since the workers were started that one has spent on samples.",
            _by_worker(lambda w: w.busy_share), _WORKER, "worker/{kind}/{worker}/busy_share"),
    Counter("worker_busy_seconds", "seconds", "sum",
            "Time that workers of this number have spent on samples.",
            _by_worker(lambda worker: worker.busy_seconds), _WORKER),
    Counter("worker_cpu_seconds", "seconds", "sum",
            "Processor time that workers of this number have got.",
            _by_worker(lambda worker: worker.cpu_seconds), _WORKER),
    Counter("worker_delay_seconds", "seconds", "sum",
            "Time that workers of this number were ready to run while others had the cores.",
            _by_worker(lambda worker: worker.delay_seconds), _WORKER),
    Counter("worker_core_ratio", "ratio", "gauge",
            "Share of a core that workers got while they were ready to run.",
            "processors.worker_share", scalar="worker_core_share"),
    Counter("cpu_pressure_seconds", "seconds", "sum",
            "Time of epochs in which some process of the machine waited for a core.",
            "processors.pressure_seconds"),
    Counter("cpu_throttled_ratio", "ratio", "gauge",
            "Share of the periods of the CPU quota in which it stopped this process.",
            "processors.throttled_share", scalar="throttled_share"),
    Counter("worker_samples", "samples", "sum",
            "Samples that workers of this number have made.",
            _by_worker(lambda worker: worker.samples), _WORKER),
    Counter("worker_restarts", "restarts", "sum",
            "How often the worker of this number was replaced.",
            _by_worker(lambda worker: worker.restarts), _WORKER),
    Counter("replaced_workers", "workers", "sum",
            "Workers that were replaced, whatever their number.",
            "worker_restarts", scalar="worker_restarts"),
    Counter("borrowed_samples", "samples", "sum", "Samples made by workers of other ranks.",
            "borrowed_samples", scalar="borrowed_samples"),
    Counter("shared_batches", "batches", "sum", "Mini-batches made once for several jobs.",
            _shared(lambda shared: shared.shared_batches), scalar="shared_prep/batches"),
    Counter("shared_samples", "samples", "sum",
            "Samples that this job's workers have made, and those that other jobs' made for it.",
            _shared(lambda shared: {"here": shared.made_here, "elsewhere": shared.made_elsewhere}),
            ("made",), "shared_prep/made_{made}"),
    Counter("shared_wait_seconds", "seconds", "sum",
            "Time that this job has waited for others to take their mini-batches.",
            _shared(lambda shared: shared.waited_seconds), scalar="shared_prep/waited_seconds"),
    Counter("remote_samples", "samples", "sum", "Samples made by workers on other machines.",
            _remote(lambda remote: remote.samples), scalar="remote/samples"),
    Counter("remote_left_tiny_batches", "tiny_batches", "sum",
            "Tiny-batches that others made after all: lost on the way, or declined there.",
            _remote(lambda r: {"leases_lost": r.leases_lost, "declined": r.declined}),
            ("why",), "remote/{why}"),
    Counter("remote_bytes", "bytes", "sum",
            "Bytes that were exchanged with workers on other machines.",
            _remote(lambda remote: {"sent": remote.bytes_sent, "received": remote.bytes_received}),
            ("direction",), "remote/bytes_{direction}"),
    Counter("remote_cpu_seconds", "seconds", "sum",
            "Processor time of this machine for what others made.",
            _remote(lambda remote: remote.cpu_seconds), scalar="remote/cpu_seconds"),
    Counter("remote_fleet_workers", "workers", "gauge",
            "Remote workers that take requests, and those that Ray should run for this rank.",
            _remote(lambda r: {"there": r.fleet_workers, "needed": r.needed or 0}),
            ("which",), "remote/workers_{which}"),
    Counter("remote_worker_samples", "samples", "sum", "Samples made by one remote worker.",
            _remote(lambda remote: {each.address: each.samples for each in remote.workers}),
            ("address",)),
    Counter("pillow_samples", "samples", "sum",
            "Samples of a compiled plan that Pillow decoded.",
            "pillow_samples", scalar="pillow_samples"),
    Counter("cache_hits", "samples", "sum", "Samples that came from the cache.",
            "cache_hits", scalar="cache_hits"),
    Counter("cache_misses", "samples", "sum", "Samples that were not in the cache.",
            _cache(lambda cache: cache.misses), scalar="cache_misses"),
    Counter("cache_tier_hits", "samples", "sum", "Samples that came from a tier of the cache.",
            _cache(lambda c: {name: c.tiers[name].hits for name in c.tiers if name != "index"}),
            ("tier",)),
    Counter("read_bytes", "bytes", "sum", "Bytes of files that were read, as they are stored.",
            "read_bytes", scalar="read_bytes"),
    Counter("files_opened", "files", "sum",
            "Files that OpenFiles of user code has opened in workers.",
            "files_opened", scalar="files_opened"),
    Counter("files_reused", "files", "sum",
            "Times that OpenFiles of user code had a file open in a worker.",
            "files_reused", scalar="files_reused"),
    Counter("copied_bytes", "bytes", "sum", "Bytes that were copied to a CUDA device.",
            "copied_bytes", scalar="copied_bytes"),
    Counter("deferred_images", "images", "sum",
            "Images that user code opened, by what has decoded them.", _deferred, ("decoder",)),
    Counter("in_flight_batches", "batches", "gauge", "Mini-batches that are made now.",
            "in_flight", scalar="in_flight"),
    Counter("slots", "slots", "gauge", "Slots for rows of mini-batches.", "slots"),
    Counter("peak_shared_memory_bytes", "bytes", "gauge",
            "The most that mini-batches have taken of shared memory.",
            "shared_memory_bytes", scalar="shared_memory_bytes"),
    Counter("shared_memory_limit_bytes", "bytes", "gauge",
            "What mini-batches in flight may take of shared memory.",
            "shared_memory_limit_bytes", scalar="shared_memory_limit_bytes"),
    Counter("store_images", "images", "gauge",
            "Images in a store: decoded cache, JPEG index, other tiers of a cache.",
            _by_store(lambda store: store.images), ("store",)),
    Counter("store_bytes", "bytes", "gauge", "Shared memory, or disk, that a store takes.",
            _by_store(lambda store: store.bytes), ("store",), "{store}/bytes"),
    Counter("store_budget_bytes", "bytes", "gauge",
            "Shared memory, or disk, that a store may take, with others of its cache.",
            _by_store(lambda store: store.budget), ("store",)),
    Counter("gpu_worker_mode", "mode", "gauge", "1 for the mode in which the GPU worker is.",
            lambda s: {str(s.gpu_worker["mode"]): 1} if s.gpu_worker else None, ("mode",)),
    Counter("gpu_worker_rate_samples_per_second", _RATE, "gauge",
            "Rate of training that was measured in each mode of the GPU worker.",
            _gpu("rates"), ("mode",)),
    Counter("gpu_worker_threshold_tiny_batches", "tiny-batches", "gauge",
            "The last tiny-batches of each mini-batch, which are reserved for the GPU worker.",
            _gpu("threshold"), scalar="gpu_worker/threshold"),
    Counter("gpu_worker_group_samples", "samples", "gauge",
            "Samples that the GPU worker decodes together, at most.",
            _gpu("group"), scalar="gpu_worker/group"),
    Counter("gpu_worker_iterator_samples", "samples", "gauge",
            "Samples that the GPU worker has made for the latest iterator.",
            _gpu("samples"), scalar="gpu_worker/samples"),
    Counter("gpu_worker_refused_samples", "samples", "gauge",
            "Samples that the GPU worker left to CPU workers, for the latest iterator.",
            _gpu("refused"), ("reason",)),
)  # fmt: skip
"""Everything but the histogram of waits. Names begin with the exporter's prefix."""
