"""``FusionLoader``: ``torch.utils.data.DataLoader``'s face over the runtime."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pickle import PicklingError
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from fusionloader.iterators.portable import PortableIteratorFactory, missing
from fusionloader.options import AFFINITIES, DecodedCache, GpuWorker, WorkerPool
from fusionloader.resume.epoch_state import EpochState
from fusionloader.resume.epochs import Epochs
from fusionloader.resume.identity import batch_size, describe_dataset, world_size
from fusionloader.resume.resharding import load_resharded
from fusionloader.workers.pickling import explain_pickling

T_co = TypeVar("T_co", covariant=True)

_AUGMENT_PER = ("sample", "tiny_batch")
_ON_ERROR = ("raise", "skip", "substitute")
_DECODE = ("exact", "fast")
_GLOBAL_MANAGER = ("auto", "off")
_RANKS = ("same", "reshard")


class FusionLoader(DataLoader[T_co]):
    """A ``DataLoader`` that yields the same batches, faster.

    Every argument of ``DataLoader`` has its meaning and its default. Image folders whose transforms
    can be compiled run natively; other map-style datasets with the default collate are written
    sample by sample into shared memory; everything else is served as ``DataLoader`` does.
    ``explain()`` says which of these applies, and why.

    The constructor only records its arguments, each as an attribute of the same name: processes and
    shared memory begin with ``iter()``.

    Args:
        dataset: as in ``DataLoader``, as are all arguments up to ``in_order``.
        batch_size: as in ``DataLoader``.
        shuffle: as in ``DataLoader``.
        sampler: as in ``DataLoader``. What it yields is passed on as it is.
        batch_sampler: as in ``DataLoader``.
        num_workers: as in ``DataLoader``.
        collate_fn: as in ``DataLoader``.
        pin_memory: as in ``DataLoader``; batches are page-locked in place, not copied.
        drop_last: as in ``DataLoader``.
        timeout: as in ``DataLoader``.
        worker_init_fn: as in ``DataLoader``.
        multiprocessing_context: as in ``DataLoader``.
        generator: as in ``DataLoader``.
        prefetch_factor: as in ``DataLoader``.
        persistent_workers: as in ``DataLoader``.
        pin_memory_device: as in ``DataLoader``.
        in_order: as in ``DataLoader``.
        tiny_batch_size: samples in a tiny-batch, the unit that workers claim.
        device: where batches are delivered; ``None`` leaves them in host memory.
        gpu_worker: whether a worker on the device takes the largest samples of each batch:
            ``"auto"`` when ``device`` is a CUDA device, DALI is there, the plan allows it and it
            is faster; ``None`` never; or a ``GpuWorker``.
        seed: of all random draws of an epoch; ``None`` draws one per iterator from ``generator``,
            as torch draws the base seed of its workers.
        decode: ``"exact"`` gives Pillow's pixels, ``"fast"`` may decode JPEGs at reduced scale.
        strict: whether a JPEG that is cut off raises, as Pillow has it, even if its crop is whole;
            ``False`` takes the crop's pixels where all of them are there.
        on_error: what a sample that cannot be read or transformed does: ``"raise"`` its exception,
            ``"skip"`` makes its batch smaller, ``"substitute"`` puts another one in its place.
        augment_per: ``"sample"`` draws augmentations for every sample; ``"tiny_batch"`` once for
            ``tiny_batch_size`` neighbours of a batch, as FusionFlow does (each operation then comes
            up as often, but by ``tiny_batch_size`` at a time). Crops, flips (those that stand by
            themselves) and what runs in Python are drawn for every sample in both.

        cache: a ``DecodedCache`` keeps the decoded images of the first epoch in shared memory, for
            plans that run wholly in workers on image files. Crops, flips and operations stay fresh,
            the pixels are the same; a file that has changed since is read anew.
        jpeg_index: ``"auto"`` keeps in shared memory, for plans like those, where the decoder stood
            here and there in each JPEG, so that epochs after the first begin near the crop; a path
            also saves that to a file, from which the next loader takes it.
        global_manager: ``"auto"`` lets ranks that ``torchrun`` started on one machine lend each
            other idle workers, which changes no batch; ``"off"`` does not.
        pool: a ``WorkerPool`` whose workers serve this loader and others by turns; ``num_workers``
            is then the pool's, and need not be given.
        cpu_affinity: ``"auto"`` gives each worker of a plan a core of its own where the machine has
            enough of them, and leaves all to the kernel where not; ``"off"`` always does. What
            ``worker_init_fn`` sets holds. Workers of a pool are as the pool says.

    Raises:
        ValueError: as ``DataLoader`` does, and for the arguments above when they are out of range.
    """

    _prepared = False
    _adopted = False

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        tiny_batch_size: int = 4,
        device: torch.device | str | int | None = None,
        gpu_worker: GpuWorker | Literal["auto"] | None = "auto",
        seed: int | None = None,
        decode: Literal["exact", "fast"] = "exact",
        strict: bool = True,
        on_error: Literal["raise", "skip", "substitute"] = "raise",
        augment_per: Literal["sample", "tiny_batch"] = "sample",
        cache: DecodedCache | None = None,
        jpeg_index: str | os.PathLike[str] | None = None,
        global_manager: Literal["auto", "off"] = "auto",
        pool: WorkerPool | None = None,
        cpu_affinity: Literal["auto", "off"] = "auto",
    ) -> None:
        if pool is not None:
            num_workers = _workers_of(pool, num_workers, multiprocessing_context)
        if not isinstance(tiny_batch_size, int) or tiny_batch_size < 1:
            raise ValueError(f"tiny_batch_size should be a positive int, not {tiny_batch_size!r}")
        if seed is not None and not isinstance(seed, int):
            raise ValueError(f"seed should be an int or None, not {seed!r}")
        if decode not in _DECODE:
            raise ValueError(f"decode should be one of {_DECODE}, not {decode!r}")
        if not isinstance(strict, bool):
            raise ValueError(f"strict should be True or False, not {strict!r}")
        if on_error not in _ON_ERROR:
            raise ValueError(f"on_error should be one of {_ON_ERROR}, not {on_error!r}")
        if augment_per not in _AUGMENT_PER:
            raise ValueError(f"augment_per should be one of {_AUGMENT_PER}, not {augment_per!r}")
        if global_manager not in _GLOBAL_MANAGER:
            raise ValueError(
                f"global_manager should be one of {_GLOBAL_MANAGER}, not {global_manager!r}"
            )
        if cpu_affinity not in AFFINITIES:
            raise ValueError(f"cpu_affinity should be one of {AFFINITIES}, not {cpu_affinity!r}")
        if gpu_worker not in ("auto", None) and not isinstance(gpu_worker, GpuWorker):
            raise ValueError(
                f'gpu_worker should be "auto", None or a GpuWorker, not {gpu_worker!r}'
            )
        if isinstance(gpu_worker, GpuWorker) and num_workers == 0:
            raise ValueError("a GpuWorker works beside CPU workers: num_workers should be positive")
        if cache is not None and not isinstance(cache, DecodedCache):
            raise ValueError(f"cache should be a DecodedCache or None, not {cache!r}")
        if jpeg_index is not None and not isinstance(jpeg_index, (str, os.PathLike)):
            raise ValueError(f'jpeg_index should be "auto", a path or None, not {jpeg_index!r}')
        if cache is not None and decode != "exact":
            raise ValueError('a DecodedCache holds images as they are: decode should be "exact"')
        if cache is not None and not strict:
            raise ValueError("a DecodedCache holds whole images: strict should be True")
        self.tiny_batch_size = tiny_batch_size
        self.device = device
        self.gpu_worker = gpu_worker
        self.seed = seed
        self.decode = decode
        self.strict = strict
        self.on_error = on_error
        self.augment_per = augment_per
        self.cache = cache
        self.jpeg_index = jpeg_index
        self.global_manager = global_manager
        self.pool = pool
        self.cpu_affinity = cpu_affinity
        self.shuffle = shuffle
        self._epochs = Epochs()
        self._iterator_factory = _iterator_factory()
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )

    def _get_iterator(self) -> Any:
        if self.pool is not None:
            _workers_of(self.pool, self.num_workers, None)  # it may have been set since
        if self.num_workers > 0:
            self.check_worker_number_rationality()
        try:
            return self._iterator_factory.iterator(self, self._epochs)
        except (AttributeError, TypeError, PicklingError) as error:
            told = explain_pickling(error, self)
            if told is None:
                raise
            raise told from error

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, here and on the sampler if it has ``set_epoch``.

        An iterator that has delivered nothing yet begins again with the new number.
        """
        self._epochs.set_epoch(epoch)
        inner = getattr(self.batch_sampler, "sampler", None)
        seen: list[Any] = []
        samplers: tuple[Any, ...] = (self.sampler, self.batch_sampler, inner)
        for sampler in samplers:
            if hasattr(sampler, "set_epoch") and not any(sampler is s for s in seen):
                sampler.set_epoch(epoch)
                seen.append(sampler)

    def resize_workers(self, num_workers: int) -> None:
        """Sets the number of workers, of a running iterator too, from its next batch on.

        No batch changes. What a worker that is ended was at is done again by another one. Loaders
        that are served in whole batches follow with their next iterator.

        Raises:
            ValueError: not a positive number, or a loader without worker processes of its own.
        """
        if not isinstance(num_workers, int) or num_workers < 1:
            raise ValueError(f"num_workers should be a positive int, not {num_workers!r}")
        if self.num_workers == 0:
            raise ValueError("a loader with num_workers=0 has no workers that could be more")
        if self.pool is not None:
            raise ValueError("the workers are those of a pool, whose number does not change")
        self.num_workers = num_workers
        self._epochs.workers = num_workers

    def lend_gpu_memory(self) -> AbstractContextManager[Any]:
        """Lets the GPU worker work, and borrow memory, within a ``with`` block.

        It does so by itself while training waits for a batch. This is for other times at which
        training leaves the device alone, such as writing a checkpoint. No batch may be asked for
        within the block. When it ends, the worker has left the device, and all memory is back.

        Without a GPU worker in temporal sharing the block has no effect.
        """
        block = self._epochs.idle_window()
        return nullcontext() if block is None else block()

    def explain(self) -> str:
        """Returns what was compiled and what was not, and why, a line per stage.

        After an epoch each line says its share of the time of the workers that have ended.
        """
        text: str = self._iterator_factory.explain(self, self._epochs.counters.part_seconds)
        return text

    def stats(self) -> dict[str, Any]:
        """Returns counters since the loader was made.

        ``epochs``, ``batches``, ``samples`` delivered; ``wait_seconds`` in ``__next__``;
        ``skipped`` and ``substituted`` samples and ``errors``, the texts of the first 100; and of
        iterators that have ended: ``worker_restarts``, ``worker_seconds`` spent on samples,
        ``pillow_samples`` of a plan that Pillow decoded, ``shared_memory_bytes`` at the peak, and
        ``part_seconds``, the wall time of reading, decoding, Python code and each stage of a plan.
        ``gpu_worker`` where there is one: its ``mode`` now, whether it is ``profiling``, the
        ``rates`` (samples per second) by mode, the ``threshold``, its ``samples``, ``restarts``,
        if it is ``gone``, why, and of its ``memory`` the ``lent_bytes``, ``borrowed_bytes`` and
        ``revoked_bytes`` of all loans, whether it was ``short``, and ``why_not`` if nothing can be
        lent. ``decoded_cache`` and ``jpeg_index`` where there is one: the
        ``images`` in it, the ``bytes`` taken, and its ``budget``. ``borrowed_samples``: made by
        workers of other ranks, for iterators that have ended.
        """
        kept: dict[str, Any] = self._iterator_factory.kept_stats()
        return asdict(self._epochs.counters) | kept

    def state_dict(self) -> dict[str, Any]:
        """Returns where the current epoch stands; JSON-serialisable, a few KB.

        Counted are the batches that ``__next__`` has returned, not those prefetched.
        """
        return self._epochs.state(self).to_state(self._identity())

    def load_state_dict(
        self,
        state: dict[str, Any] | Sequence[dict[str, Any]],
        *,
        ranks: Literal["same", "reshard"] = "same",
    ) -> None:
        """Makes the next ``iter()`` go on where ``state_dict()`` was called.

        The remaining batches are bit-identical to those of an uninterrupted run. Samples already
        delivered are not read again. (An ``IterableDataset`` is gone through once more.)

        With ``ranks="reshard"`` the number of ranks, ``batch_size`` and ``drop_last`` may be
        others. Then the samples of the epoch that no rank has delivered are shared by the ranks of
        this loader's ``DistributedSampler``, each drawn as it would have been; its rule makes the
        shares equal (some are repeated, or left out with its ``drop_last``). Where nothing is
        different, the batches are those of an uninterrupted run.

        Args:
            state: of this rank; with ``ranks="reshard"`` that of any rank, if all of them had
                delivered as many batches, or a list with those of all ranks.
            ranks: ``"same"`` refuses a state of another number of ranks.

        Raises:
            ValueError: the state is of another dataset, batch size, world size or version, of an
                epoch that a ``DistributedSampler`` ordered otherwise, or cannot be resharded.
        """
        if ranks not in _RANKS:
            raise ValueError(f"ranks should be one of {_RANKS}, not {ranks!r}")
        identity = self._identity()
        if ranks == "reshard":
            epoch_state = load_resharded(self, state, identity)
        elif isinstance(state, dict):
            epoch_state = EpochState.from_state(state, identity)
        else:
            raise ValueError(
                f"a state is a dict, not a {type(state).__name__}; those of several ranks are "
                'loaded with ranks="reshard"'
            )
        self._shutdown_iterator()
        self._epochs.resume(self, epoch_state)

    def _identity(self) -> dict[str, Any]:
        return {
            **describe_dataset(self.dataset),
            "batch_size": batch_size(self),
            "drop_last": self.drop_last,
            "world_size": world_size(self),
        }

    def close(self) -> None:
        """Ends persistent workers now; the loader can be iterated again.

        The workers of a pool end with the pool.
        """
        self._shutdown_iterator()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What Accelerate asks before it rebuilds a loader as a plain ``DataLoader``."""
        if not self._prepared and not self._adopted:
            warnings.warn(
                "Accelerate's prepare() puts a plain DataLoader in the place of this FusionLoader, "
                "without its speed and its options. fusionloader.integrations.accelerate.prepare("
                "accelerator, ...) does the same and keeps it.",
                stacklevel=4,
            )
        return self._prepared

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self._prepared = prepared

    def _shutdown_iterator(self) -> None:
        iterator, self._iterator = self._iterator, None
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()

    def __enter__(self) -> FusionLoader[T_co]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _workers_of(pool: WorkerPool, num_workers: int, context: Any) -> int:
    """Returns the number of workers; what else is said of them has to agree with the pool."""
    if not isinstance(pool, WorkerPool):
        raise ValueError(f"pool should be a WorkerPool or None, not {pool!r}")
    if num_workers not in (0, pool.num_workers):
        raise ValueError(
            f"num_workers is {num_workers!r}, and the pool has {pool.num_workers} workers, all of "
            "which serve each of its loaders: leave num_workers out"
        )
    if context is not None and context is not pool.multiprocessing_context:
        raise ValueError(
            "the workers are started by the pool: give multiprocessing_context to the WorkerPool"
        )
    return pool.num_workers


def _iterator_factory() -> Any:
    why = missing()
    if why is not None:
        return PortableIteratorFactory(why)
    from fusionloader.iterators.factory import IteratorFactory

    return IteratorFactory()
