"""Options of a loader: plain values, frozen, checked once."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from multiprocessing.context import BaseContext
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from fusionloader.options.cache_settings import Cache
from fusionloader.options.gpu_settings import GpuWorker
from fusionloader.options.remote_settings import Remote
from fusionloader.system.amounts import parse_bytes
from fusionloader.system.current_device import numbered

if TYPE_CHECKING:
    import torch

    from fusionloader.options.aliases import AnyDataset, AnyLoader, Batch, Index, Sample

Decode = Literal["exact", "fast"]
OnError = Literal["raise", "skip", "substitute"]
AugmentPer = Literal["sample", "tiny_batch"]
Switch = Literal["auto", "off"]
RankSharing = Literal["auto", "all", "off"]
DeferredImages = Literal["auto", "tensors", "off"]

SWITCH = get_args(Switch)
_DEFERRED_IMAGES = get_args(DeferredImages)
_REMOTE_IN_FLIGHT = 8
_STALLED_PLAN_SECONDS = 60.0
_SHARE = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class Closable(Protocol):
    """An object with a method ``close``."""

    def close(self) -> None: ...


def as_context(context: BaseContext | str | None) -> BaseContext | None:
    """Returns the context of an argument; raises ValueError if it is none."""
    if isinstance(context, str):
        return multiprocessing.get_context(context)
    if not isinstance(context, BaseContext | None):
        methods = multiprocessing.get_all_start_methods()
        raise ValueError(
            f"multiprocessing_context should be a start method, one of {methods}, or a context of "
            f"multiprocessing, not {context!r}"
        )
    return context


class WorkerPool:
    """Worker processes shared by several loaders of a process; they serve the iterated loader.

        pool = WorkerPool(8)
        train = FusionLoader(train_set, 256, shuffle=True, pool=pool)
        val = FusionLoader(val_set, 256, pool=pool)

    The processes are started by the first ``iter()`` of a loader. They end with ``close()``, with
    the last reference to the pool, or with the process. A pool is a context manager. A copy of a
    pool is the pool itself; unpickling makes a new pool of the same size.

    Args:
        num_workers: number of processes.
        multiprocessing_context: context by which they are started, as in ``DataLoader``.
        cpu_affinity: as in ``FusionLoader``.

    Raises:
        ValueError: an argument is out of its range.
    """

    is_background: bool = False

    def __init__(
        self,
        num_workers: int,
        multiprocessing_context: BaseContext | str | None = None,
        cpu_affinity: Literal["auto", "off"] = "auto",
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
            raise ValueError(f"a WorkerPool has a positive int of workers, not {num_workers!r}")
        if cpu_affinity not in SWITCH:
            raise ValueError(f"cpu_affinity should be one of {SWITCH}, not {cpu_affinity!r}")
        self.cpu_affinity: Switch = cpu_affinity
        self.num_workers: int = num_workers
        self.multiprocessing_context: BaseContext | None = as_context(multiprocessing_context)
        self._processes: Closable | None = None  # made by fusionloader.sharing.pool.pool_processes

    @property
    def owner(self) -> WorkerPool:
        """The pool with the processes: itself, unless it was made by ``background()``."""
        return self

    def background(self) -> WorkerPool:
        """Returns the same workers, for loaders of lower priority.

            val = FusionLoader(val_set, 256, pool=pool.background())

        A worker serves such a loader only while no other loader of the pool has work to claim, and
        checks again after each claim.
        """
        return _BackgroundPool(self)

    def close(self) -> None:
        """Ends the processes; the next ``iter()`` of a loader starts new ones.

        Iterators that have not finished cannot continue.
        """
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"WorkerPool({self.num_workers})"

    def __copy__(self) -> WorkerPool:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> WorkerPool:
        return self

    def __reduce__(self) -> tuple[Callable[..., WorkerPool], tuple[Any, ...]]:
        context = self.multiprocessing_context
        method = None if context is None else context.get_start_method()
        return WorkerPool, (self.num_workers, method, self.cpu_affinity)

    def number_of_workers(self, num_workers: int, context: BaseContext | None) -> int:
        """Returns the number of workers of a loader of this pool.

        Raises:
            ValueError: the arguments of the loader contradict the pool.
        """
        if num_workers not in (0, self.num_workers):
            raise ValueError(
                f"num_workers is {num_workers!r}, and the pool has {self.num_workers} workers, all "
                "of which serve each of its loaders: leave num_workers out"
            )
        if context is not None and context is not self.multiprocessing_context:
            raise ValueError(
                "the workers are started by the pool: give multiprocessing_context to the "
                "WorkerPool"
            )
        return self.num_workers


class _BackgroundPool(WorkerPool):
    """A pool's workers for loaders of lower priority; has no processes itself."""

    is_background = True

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__(pool.num_workers, pool.multiprocessing_context, pool.cpu_affinity)
        self._owner = pool

    @property
    def owner(self) -> WorkerPool:
        return self._owner

    def background(self) -> WorkerPool:
        return self

    def close(self) -> None:
        self._owner.close()

    def __repr__(self) -> str:
        return f"{self._owner!r}.background()"

    def __reduce__(self) -> tuple[Callable[..., WorkerPool], tuple[Any, ...]]:
        return _BackgroundPool, (self._owner,)


def number_of_workers(pool: object, num_workers: int, context: BaseContext | None) -> int:
    """Returns the number of workers of a loader with the argument ``pool``.

    Raises:
        ValueError: ``pool`` is no ``WorkerPool``, or the other arguments contradict it.
    """
    if pool is None:
        return num_workers
    if not isinstance(pool, WorkerPool):
        raise ValueError(f"pool should be a WorkerPool or None, not {pool!r}")
    return pool.number_of_workers(num_workers, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionOptions:
    """The arguments of ``FusionLoader`` beyond those of ``DataLoader``; see its docstring.

    Raises:
        ValueError: a value is out of its range, or two of them contradict each other.
    """

    num_workers: int
    tiny_batch_size: int
    device: torch.device | str | int | None
    gpu_worker: GpuWorker | Literal["auto"] | None
    seed: int | None
    decode: Decode
    strict: bool
    on_error: OnError
    augment_per: AugmentPer
    cache: Cache | None
    jpeg_index: str | os.PathLike[str] | None
    global_manager: RankSharing
    pool: WorkerPool | None
    cpu_affinity: Switch
    deferred_images: DeferredImages
    max_shared_bytes: int | str | None
    share: str | None
    stall_timeout: float | None
    remote: Remote | None

    def __post_init__(self) -> None:
        for name in "tiny_batch_size", "seed":
            if isinstance(value := getattr(self, name), Integral):  # numpy's, too
                object.__setattr__(self, name, int(value))
        if not isinstance(self.tiny_batch_size, int) or not 0 < self.tiny_batch_size < 1 << 31:
            raise _unfit("tiny_batch_size", "a positive int below 2**31", self.tiny_batch_size)
        if self.seed is not None and not isinstance(self.seed, int):
            raise _unfit("seed", "an int or None", self.seed)
        _check_choice("decode", self.decode, get_args(Decode))
        if not isinstance(self.strict, bool):
            raise _unfit("strict", "True or False", self.strict)
        _check_choice("on_error", self.on_error, get_args(OnError))
        _check_choice("augment_per", self.augment_per, get_args(AugmentPer))
        _check_choice("global_manager", self.global_manager, get_args(RankSharing))
        _check_choice("cpu_affinity", self.cpu_affinity, SWITCH)
        _check_choice("deferred_images", self.deferred_images, _DEFERRED_IMAGES)
        if self.gpu_worker not in ("auto", None) and not isinstance(self.gpu_worker, GpuWorker):
            raise _unfit("gpu_worker", '"auto", None or a GpuWorker', self.gpu_worker)
        if isinstance(self.gpu_worker, GpuWorker) and self.num_workers == 0:
            raise ValueError("a GpuWorker works beside CPU workers: num_workers should be positive")
        if self.cache is not None:
            self._check_cache(self.cache)
        if self.jpeg_index not in (None, "auto"):
            self._check_index(self.jpeg_index)
        if self.max_shared_bytes is not None:
            parse_bytes(self.max_shared_bytes, "max_shared_bytes")
        self._check_share()
        self._check_stall_timeout()
        if self.remote is not None:
            self._check_remote()

    def _check_cache(self, cache: object) -> None:
        if not isinstance(cache, Cache):
            wanted = "a Cache, a DecodedCache or None"
            if isinstance(cache, (str, int)):
                wanted += f", such as Cache({cache!r})"
            raise _unfit("cache", wanted, cache)
        if "decoded" not in cache.tiers:
            return
        others = 'or tiers=("index", "encoded")'
        if self.decode != "exact":
            raise ValueError(
                'a cache of decoded images holds them as they are: decode should be "exact", '
                + others
            )
        if not self.strict:
            raise ValueError(
                "a cache of decoded images holds whole images: strict should be True, " + others
            )

    def _check_index(self, path: object) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise _unfit("jpeg_index", '"auto", a path or None', path)
        folder = os.path.dirname(os.path.abspath(os.fspath(path)))
        if os.path.isdir(path):
            raise ValueError(f"jpeg_index should be a file, and {path} is a folder")
        if not os.path.exists(path) and not os.access(folder, os.W_OK | os.X_OK):
            why = "cannot be written" if os.path.isdir(folder) else "is no folder: make it first"
            raise ValueError(f"jpeg_index cannot be saved as {path}: {folder} {why}")

    def _check_share(self) -> None:
        if self.share is None:
            return
        if not isinstance(self.share, str) or not _SHARE.fullmatch(self.share):
            expected = 'one word of at most 64 letters, digits, "-", "_" and "."'
            raise _unfit("share", expected, self.share)
        if self.num_workers == 0:
            raise ValueError("jobs share the work of their workers: with share, num_workers > 0")
        if self.pool is not None:
            raise ValueError("share is for workers of the loader's own: num_workers, not pool")
        if self.gpu_worker is not None:
            raise ValueError(
                "a GPU worker makes batches for one job only: leave gpu_worker out, or share"
            )

    def _check_stall_timeout(self) -> None:
        seconds = self.stall_timeout
        if seconds is None:
            return
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds < math.inf:
            raise _unfit("stall_timeout", "a number of seconds, 0 for none, or None", seconds)
        if seconds and self.num_workers == 0:
            raise ValueError("stall_timeout is for workers: with it, num_workers > 0")

    def _check_remote(self) -> None:
        if self.num_workers == 0:
            raise ValueError(
                "remote workers take a part of this machine's workers' work: with remote, "
                "num_workers > 0"
            )
        if self.pool is not None or self.share is not None:
            other = "pool" if self.pool is not None else "share"
            raise ValueError(f"remote workers serve one loader by itself: leave {other} out")

    def stalled_after(self, is_plan: bool) -> float:
        """Returns the seconds after which a worker without progress is killed, 0 for never.

        ``is_plan`` says that workers run a plan natively, and no user code, which may take long.
        """
        if self.stall_timeout is None:
            return _STALLED_PLAN_SECONDS if is_plan else 0
        return self.stall_timeout

    @property
    def shared_bytes(self) -> int | None:
        """``max_shared_bytes`` in bytes; ``None`` if the loader decides."""
        return None if self.max_shared_bytes is None else parse_bytes(self.max_shared_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions(FusionOptions):
    """The arguments of a loader at the time an iterator begins; for all packages below the loader.

    ``index_sampler`` yields mini-batches, or single indices with ``batch_size=None``.
    ``dataset_kind`` and ``auto_collation`` are torch's.
    """

    dataset: AnyDataset
    batch_size: int | None
    sampler: Iterable[Index]
    batch_sampler: Iterable[list[Index]] | None
    index_sampler: Iterable[Index]
    dataset_kind: int
    auto_collation: bool
    collate_fn: Callable[[list[Sample]], Batch]
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: BaseContext | None
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool

    def __post_init__(self) -> None:
        """Checks nothing, because the loader's constructor did."""

    @classmethod
    def of(cls, loader: AnyLoader) -> LoaderOptions:
        """Returns the arguments of a ``FusionLoader``, read from its attributes.

        A bare "cuda" is this thread's device. ``next()`` may be called in one with another device.
        """
        private = ("index_sampler", "dataset_kind", "auto_collation")
        names = {field.name: field.name for field in fields(cls)}
        names |= {name: f"_{name}" for name in private}
        found = {name: getattr(loader, attribute) for name, attribute in names.items()}
        return cls(**{**found, "device": numbered(found["device"])})

    @property
    def in_flight(self) -> int:
        """Number of mini-batches made ahead."""
        least = 1 if self.remote is None else _REMOTE_IN_FLIGHT  # to hide network latency
        return max((self.prefetch_factor or 0) * self.num_workers, least)

    @property
    def inner_sampler(self) -> Iterable[Index] | None:
        """The sampler from which the batch sampler draws; ``None`` if it has none."""
        return getattr(self.batch_sampler, "sampler", None)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _unfit(name, f"one of {choices}", value)


def _unfit(name: str, expected: str, found: object) -> ValueError:
    return ValueError(f"{name} should be {expected}, not {found!r}")
