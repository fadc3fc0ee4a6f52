"""How what is exported is read from a snapshot, and by which labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a snapshot has its scalars from here
    from fusionloader.observe.statistics.snapshot import LoaderStats, Scalar

Reading = tuple[tuple[str, ...], "Scalar | None"]
"""Values of a metric's labels, and its value with these; ``None`` where it is not known."""

Read = Callable[["LoaderStats"], Iterable[Reading]]


def one(name: str) -> Read:
    """Returns what reads an attribute of a snapshot."""
    get = attrgetter(name)
    return lambda stats: [((), get(stats))]


def _by(name: str, label: Callable[[Any], tuple[str, ...]], value: str) -> Read:
    """Returns what reads an attribute of each of several parts of a snapshot."""
    parts, get = attrgetter(name), attrgetter(value)
    return lambda stats: [(label(part), get(part)) for part in parts(stats)]


def of_stages(value: str) -> Read:
    """Returns what reads an attribute of each stage; labeled by its name."""
    return _by("stages", lambda stage: (stage.name,), value)


def of_workers(value: str) -> Read:
    """Returns what reads an attribute of each worker; labeled by kind and number."""
    return _by("workers", lambda worker: (worker.kind, str(worker.number)), value)


def percentiles(stats: LoaderStats) -> list[Reading]:
    """Returns the percentiles of waits, labeled ``50``, ``95`` and ``99``."""
    return [((each,), getattr(stats.waits, f"p{each}")) for each in ("50", "95", "99")]


def bad_samples(stats: LoaderStats) -> list[Reading]:
    """Returns the bad samples, labeled by what became of them."""
    return [((each,), getattr(stats, each)) for each in ("skipped", "substituted")]


def of_stores(value: str) -> Read:
    """Returns what reads an attribute of each store of files; labeled by its name."""

    def read(stats: LoaderStats) -> Iterator[Reading]:
        for name in ("decoded_cache", "jpeg_index"):
            if (store := getattr(stats, name)) is not None:
                yield (name,), getattr(store, value)
        for name, store in () if stats.cache is None else stats.cache.other_stores().items():
            yield (name,), getattr(store, value)

    return read


def cache_misses(stats: LoaderStats) -> list[Reading]:
    """Returns the samples that were not in the cache, if there is one."""
    return [] if stats.cache is None else [((), stats.cache.misses)]


def tier_hits(stats: LoaderStats) -> list[Reading]:
    """Returns the samples that came from each tier of the cache, labeled by it."""
    tiers = {} if stats.cache is None else stats.cache.tiers
    return [((name,), tier.hits) for name, tier in tiers.items() if name != "index"]


def deferred_images(stats: LoaderStats) -> list[Reading]:
    """Returns the images of user code, labeled by what has decoded them."""
    images: Mapping[str, Any] = stats.deferred_images
    return [(("native",), images["files"]), (("pillow",), sum(images["left_to_pillow"].values()))]


def shared_prep(name: str) -> Read:
    """Returns what reads an attribute of what is shared with other jobs, if anything is."""
    get = attrgetter(name)

    def read(stats: LoaderStats) -> list[Reading]:
        return [] if stats.shared_prep is None else [((), get(stats.shared_prep))]

    return read


def shared_samples(stats: LoaderStats) -> list[Reading]:
    """Returns the samples of a group of jobs, labeled by whose workers have made them."""
    shared = stats.shared_prep
    if shared is None:
        return []
    return [(("here",), shared.made_here), (("elsewhere",), shared.made_elsewhere)]


def remote(name: str) -> Read:
    """Returns what reads an attribute of remote workers together, if there are any."""
    get = attrgetter(name)
    return lambda stats: [] if stats.remote is None else [((), get(stats.remote))]


def remote_left(stats: LoaderStats) -> list[Reading]:
    """Returns the tiny-batches that remote workers did not make, labeled by why."""
    if stats.remote is None:
        return []
    return [((name,), getattr(stats.remote, name)) for name in ("leases_lost", "declined")]


def remote_bytes(stats: LoaderStats) -> list[Reading]:
    """Returns the bytes of remote workers, labeled by their direction."""
    if stats.remote is None:
        return []
    return [((name,), getattr(stats.remote, f"bytes_{name}")) for name in ("sent", "received")]


def of_remote_workers(name: str) -> Read:
    """Returns what reads an attribute of each remote worker; labeled by its address."""
    get = attrgetter(name)

    def read(stats: LoaderStats) -> list[Reading]:
        workers = () if stats.remote is None else stats.remote.workers
        return [((worker.address,), get(worker)) for worker in workers]

    return read


def of_gpu_worker(name: str) -> Read:
    """Returns what reads a value of the GPU worker, if there is one."""

    def read(stats: LoaderStats) -> list[Reading]:
        told: Mapping[str, Any] = stats.gpu_worker
        return [((), told[name])] if told else []

    return read


def of_gpu_worker_by_key(name: str) -> Read:
    """Returns what reads a mapping of the GPU worker; labeled by its keys."""

    def read(stats: LoaderStats) -> list[Reading]:
        told: Mapping[str, Any] = stats.gpu_worker
        return [((key,), value) for key, value in told.get(name, {}).items()]

    return read


def gpu_mode(stats: LoaderStats) -> list[Reading]:
    """Returns 1, labeled by the mode of the GPU worker, if there is one."""
    return [((str(stats.gpu_worker["mode"]),), 1)] if stats.gpu_worker else []
