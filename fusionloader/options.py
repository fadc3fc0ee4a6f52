"""Options of a loader that are more than a number: plain values, checked once."""

from __future__ import annotations

import multiprocessing
import re
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Literal

Sharing = Literal["auto", "off", "temporal", "spatial"]
Prebuilt = Literal["fused", "families"]
Memory = Literal["auto", "share", "own"]

_SHARING = ("auto", "off", "temporal", "spatial")
_MEMORY = ("auto", "share", "own")
AFFINITIES = ("auto", "off")
_PREBUILT = ("fused", "families")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)}


@dataclass(frozen=True, slots=True)
class GpuWorker:
    """A worker that takes the largest samples of each mini-batch, in groups, through DALI.

    Args:
        device: ``None`` for the loader's own ``device``, or ``"cpu"`` for DALI's CPU backend, which
            runs the same code on machines without a GPU.
        sharing: ``"temporal"`` lets it run only while training waits for a batch, ``"spatial"``
            always; ``"auto"`` tries both and neither for a few iterations and keeps the fastest.
        memory_limit: of the device's memory, in bytes or as ``"2GiB"``; ``None`` sets no limit.
        memory: whether it may use, while training waits for a batch, memory that training's
            allocator holds but does not use: ``"share"`` whenever its own allocations fail,
            ``"auto"`` only if both peaks of memory were found not to fit on the device together,
            ``"own"`` never. Memory is lent in temporal sharing alone, and on CUDA devices alone.
        share_limit: of the memory lent at a time, in bytes or as ``"10GiB"``.
        prebuilt: what applies the augmentations: ``"fused"``, one kernel for all operations; or
            ``"families"``, DALI pipelines for families of operations, which need no CUDA compiler.
        group_size: samples in a launch at most; ``None`` lets measurements decide, up to 64.
        threads: of DALI on the CPU.
        hw_decoder_load: share of the images for the hardware JPEG decoder where there is one.

    Raises:
        ValueError: a value is out of its range.
    """

    device: str | None = None
    sharing: Sharing = "auto"
    memory_limit: int | str | None = None
    memory: Memory = "auto"
    share_limit: int | str = "10GiB"
    prebuilt: Prebuilt = "fused"
    group_size: int | None = None
    threads: int = 1
    hw_decoder_load: float = 0.65

    def __post_init__(self) -> None:
        if self.sharing not in _SHARING:
            raise ValueError(f"sharing should be one of {_SHARING}, not {self.sharing!r}")
        if self.prebuilt not in _PREBUILT:
            raise ValueError(f"prebuilt should be one of {_PREBUILT}, not {self.prebuilt!r}")
        for name in ("group_size", "threads"):
            value = getattr(self, name)
            if value is None and name == "group_size":
                continue
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} should be a positive int, not {value!r}")
        if not 0 <= self.hw_decoder_load <= 1:
            raise ValueError(
                f"hw_decoder_load should be between 0 and 1, not {self.hw_decoder_load!r}"
            )
        if self.memory_limit is not None:
            parse_bytes(self.memory_limit)
        self._check_memory()

    def _check_memory(self) -> None:
        if self.memory not in _MEMORY:
            raise ValueError(f"memory should be one of {_MEMORY}, not {self.memory!r}")
        parse_bytes(self.share_limit)
        if self.memory == "share" and self.sharing == "spatial":
            raise ValueError(
                'memory="share" needs sharing="temporal" (or "auto"): training lends memory only '
                "while it waits for a batch, and in spatial sharing the worker runs beside it"
            )
        if self.memory == "share" and self.device == "cpu":
            raise ValueError(
                'memory="share" is about memory of a CUDA device, which the CPU backend of DALI '
                'does not use: leave memory="auto"'
            )


@dataclass(frozen=True, slots=True)
class DecodedCache:
    """Decoded images in shared memory: later epochs decode nothing that is there.

    It is filled by the first epoch, shared by the workers of the loader, and never evicts.

    Args:
        budget: of shared memory, in bytes or as ``"8GiB"``; what is there besides the pixels
            counts as well.

    Raises:
        ValueError: it is not an amount of memory.
    """

    budget: int | str

    def __post_init__(self) -> None:
        parse_bytes(self.budget)

    @property
    def nbytes(self) -> int:
        """The budget in bytes."""
        return parse_bytes(self.budget)


class WorkerPool:
    """Worker processes for several loaders of a process, which serve the one that is asked.

        pool = WorkerPool(8)
        train = FusionLoader(train_set, 256, shuffle=True, pool=pool)
        val = FusionLoader(val_set, 256, pool=pool)

    The processes begin with the first ``iter()`` of a loader, and end with ``close()``, with the
    last reference to the pool, or with the process. A pool is a context manager. A copy of it is
    the pool itself; a pickled one becomes another pool of that size.

    Args:
        num_workers: processes; never are there more.
        multiprocessing_context: by which they are started, as in ``DataLoader``.
        cpu_affinity: as in ``FusionLoader``.

    Raises:
        ValueError: not a positive number, no such affinity, or no way to start processes.
    """

    def __init__(
        self,
        num_workers: int,
        multiprocessing_context: Any = None,
        cpu_affinity: Literal["auto", "off"] = "auto",
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
            raise ValueError(f"a WorkerPool has a positive int of workers, not {num_workers!r}")
        if isinstance(multiprocessing_context, str):
            multiprocessing_context = multiprocessing.get_context(multiprocessing_context)
        if not isinstance(multiprocessing_context, (BaseContext, type(None))):
            raise ValueError(
                "multiprocessing_context should be a start method, one of "
                f"{multiprocessing.get_all_start_methods()}, or a context of multiprocessing, not "
                f"{multiprocessing_context!r}"
            )
        if cpu_affinity not in AFFINITIES:
            raise ValueError(f"cpu_affinity should be one of {AFFINITIES}, not {cpu_affinity!r}")
        self.cpu_affinity = cpu_affinity
        self.num_workers = num_workers
        self.multiprocessing_context = multiprocessing_context
        self._processes: Any = None  # made, and known, by fusionloader.pool.pool_processes

    def close(self) -> None:
        """Ends the processes; the next ``iter()`` of a loader starts new ones.

        Iterators that are under way cannot go on.
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

    def __deepcopy__(self, memo: dict[int, Any]) -> WorkerPool:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        context = self.multiprocessing_context
        method = None if context is None else context.get_start_method()
        return WorkerPool, (self.num_workers, method, self.cpu_affinity)


def parse_bytes(amount: int | str) -> int:
    """Returns ``"2GiB"``, ``"500 MB"`` or a plain number as a number of bytes.

    Raises:
        ValueError: not a positive amount of memory.
    """
    if isinstance(amount, int) and not isinstance(amount, bool) and amount > 0:
        return amount
    if isinstance(amount, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", amount)
        if found and float(found[1]) > 0:
            return int(float(found[1]) * _UNITS[found[2] or ""])
    raise ValueError(f'an amount of memory is written as "2GiB" or in bytes, not {amount!r}')
