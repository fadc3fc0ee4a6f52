"""``FusionLoader``: ``torch.utils.data.DataLoader``'s face over the runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pickle import PicklingError
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from typing_extensions import Self  # torch needs it, too

from fusionloader.data.epochs.identity import describe_loader
from fusionloader.data.epochs.loading import load_state
from fusionloader.data.epochs.sampling import set_epoch_of_samplers
from fusionloader.engine.iterators.loader_state import Window
from fusionloader.observe.representation import DescribedLoader, Shown, measured
from fusionloader.observe.statistics.counters import rank_here
from fusionloader.observe.statistics.snapshot import LoaderStats
from fusionloader.observe.trace.recorder import Traced
from fusionloader.observe.trace.recording import Trace
from fusionloader.options.aliases import Batch, Index, Sample, State
from fusionloader.options.cache_settings import Cache
from fusionloader.options.gpu_settings import GpuWorker
from fusionloader.options.loader_options import (
    AugmentPer,
    Decode,
    FusionOptions,
    LoaderOptions,
    OnError,
    Switch,
    WorkerPool,
    number_of_workers,
)
from fusionloader.options.remote_settings import Remote
from fusionloader.route.loader_parts import LoaderParts
from fusionloader.route.portable import iterator_factory
from fusionloader.system.user_warnings import warn_user
from fusionloader.workers.pickling import explain_pickling

T_co = TypeVar("T_co", covariant=True)


class FusionLoader(Shown, DataLoader[T_co]):
    """A ``DataLoader`` that yields the same batches, faster.

    Every argument of ``DataLoader`` has its meaning and its default. Image folders whose transforms
    can be compiled run natively; other map-style datasets with the default collate are written
    sample by sample into shared memory; everything else is served as ``DataLoader`` does.
    ``explain()`` says which of these applies, and why.

    The constructor only records its arguments, each as an attribute of the same name: processes and
    shared memory begin with ``iter()``.

    Args:
        dataset: as in ``DataLoader``, as are all arguments up to ``in_order``.
        sampler: as in ``DataLoader``. What it yields is passed on as it is.
        pin_memory: as in ``DataLoader``; batches are page-locked in place, not copied.
        tiny_batch_size: samples in a tiny-batch, the unit that workers claim.
        device: where batches are delivered; ``None`` leaves them in host memory.
        gpu_worker: whether a worker on the device takes the largest samples of each batch:
            ``None`` never, until it has been measured on a device; ``"auto"`` when ``device`` is a
            CUDA device, DALI is there, the plan allows it and it is faster; or a ``GpuWorker``.
        seed: of all random draws of an epoch; ``None`` draws one per iterator from ``generator``,
            as torch draws the base seed of its workers.
        decode: ``"exact"`` gives Pillow's pixels, ``"fast"`` may decode JPEGs at reduced scale.
        strict: whether a JPEG that is cut off raises, as Pillow has it, even if its crop is whole;
            ``False`` takes the crop's pixels where all of them are there.
        on_error: what a sample that cannot be read or transformed does: ``"raise"`` its exception,
            ``"skip"`` makes its batch smaller, ``"substitute"`` puts another one in its place.
            Where batches are made as a whole, iterating raises ``ValueError`` unless ``"raise"``.
        augment_per: ``"sample"`` draws augmentations for every sample; ``"tiny_batch"`` once for
            ``tiny_batch_size`` neighbours of a batch, as FusionFlow does (each operation then comes
            up as often, but by ``tiny_batch_size`` at a time). Crops, flips (those that stand by
            themselves) and what runs in Python are drawn for every sample in both.
        cache: a ``Cache`` keeps what the first epoch has read and decoded, for plans that run
            wholly in workers on image files, and for files that user code opens there; ranks and
            jobs of a machine share it. Crops, flips and operations stay fresh, the pixels are the
            same; a file that has changed since is read anew.
        jpeg_index: ``"auto"`` keeps in shared memory, for files like those, where the decoder stood
            here and there in each JPEG, so that epochs after the first begin near the crop; a path
            also saves that of a plan to a file, from which the next loader takes it.
        global_manager: ``"auto"`` lets ranks that ``torchrun`` started on one machine share
            idle workers, which changes no batch; ``"off"`` does not.
        pool: a ``WorkerPool`` whose workers serve this loader and others; ``num_workers`` is
            then the pool's, and need not be given.
        cpu_affinity: ``"auto"`` gives each worker of a plan a dedicated core where the machine has
            enough of them, and leaves all to the kernel where not; ``"off"`` always does. What
            ``worker_init_fn`` sets holds. Workers of a pool are as the pool says.
        deferred_images: ``"auto"`` has the native decoders make the pixels of image files that user
            code opens with Pillow, where they are asked for, crops and transforms included: in
            workers, and in the training process while it fetches. ``"off"`` leaves them to Pillow.
        max_shared_bytes: that mini-batches in flight may take of shared memory, in bytes or as
            ``"2GiB"``: fewer than ``prefetch_factor * num_workers`` are made ahead where they would
            take more, but always two. ``None``: a quarter of the memory that is free.
        share: a word; jobs of this machine and user that have it prepare each mini-batch once, for
            all of them. Everything that makes a batch has to be equal
            (docs/scale/coordinated_prep.md).
        stall_timeout: seconds after which a worker that is at the same sample, while a batch is
            waited for, is named, killed, and its work done by another (docs/guide/faults.md); 0:
            never. ``None``: 60 for plans, and never where user code makes samples.
        remote: addresses of workers on other machines, ``"auto"`` for those of a Ray cluster, or a
            ``Remote``: they prepare what this machine cannot make in time
            (docs/scale/remote_workers.md).

    Raises:
        ValueError: as ``DataLoader`` does, and for the arguments above when they are out of range.
    """

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
    global_manager: Switch
    pool: WorkerPool | None
    cpu_affinity: Switch
    deferred_images: Switch
    max_shared_bytes: int | str | None
    share: str | None
    stall_timeout: float | None
    remote: Remote | None

    _prepared = _adopted = False

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Index] | Iterable[Index] | None = None,
        batch_sampler: Sampler[list[Index]] | Iterable[list[Index]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Sample]], Batch] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        tiny_batch_size: int = 4,
        device: torch.device | str | int | None = None,
        gpu_worker: GpuWorker | Literal["auto"] | None = None,
        seed: int | None = None,
        decode: Literal["exact", "fast"] = "exact",
        strict: bool = True,
        on_error: Literal["raise", "skip", "substitute"] = "raise",
        augment_per: Literal["sample", "tiny_batch"] = "sample",
        cache: Cache | None = None,
        jpeg_index: str | os.PathLike[str] | None = None,
        global_manager: Literal["auto", "off"] = "auto",
        pool: WorkerPool | None = None,
        cpu_affinity: Literal["auto", "off"] = "auto",
        deferred_images: Literal["auto", "off"] = "auto",
        max_shared_bytes: int | str | None = None,
        share: str | None = None,
        stall_timeout: float | None = None,
        remote: Remote | Literal["auto"] | Sequence[str] | None = None,
    ) -> None:
        num_workers = number_of_workers(pool, num_workers, multiprocessing_context)
        options = FusionOptions(
            num_workers=num_workers,
            tiny_batch_size=tiny_batch_size,
            device=device,
            gpu_worker=gpu_worker,
            seed=seed,
            decode=decode,
            strict=strict,
            on_error=on_error,
            augment_per=augment_per,
            cache=cache,
            jpeg_index=jpeg_index,
            global_manager=global_manager,
            pool=pool,
            cpu_affinity=cpu_affinity,
            deferred_images=deferred_images,
            max_shared_bytes=max_shared_bytes,
            share=share,
            stall_timeout=stall_timeout,
            remote=None if remote is None else Remote.of(remote),
        )
        for field in fields(options):
            if field.name != "num_workers":  # DataLoader's own
                setattr(self, field.name, getattr(options, field.name))
        self.shuffle: bool | None = shuffle
        self._state = LoaderParts()
        self._iterator_factory = iterator_factory()
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

    def __iter__(self) -> _BaseDataLoaderIter:
        if self._iterator is not None and self._iterator_pid != os.getpid():
            self._iterator = None  # the workers are those of the process that this is a fork of
        return super().__iter__()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        self._iterator_pid = os.getpid()
        if self.pool is not None:  # num_workers may have been set since
            self.pool.number_of_workers(self.num_workers, None)
        if self.num_workers > 0:
            self.check_worker_number_rationality()
        options = LoaderOptions.of(self)
        try:
            return self._iterator_factory.iterator(self, options, self._state)
        except (AttributeError, TypeError, PicklingError) as error:
            explained = explain_pickling(error, options)
            if explained is None:
                raise
            raise explained from error

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, here and on the sampler if it has ``set_epoch``.

        An iterator that has delivered nothing yet begins again with the new number.
        """
        self._state.epochs.set_epoch(epoch)
        set_epoch_of_samplers(LoaderOptions.of(self), epoch)

    def resize_workers(self, num_workers: int) -> None:
        """Sets the number of workers, of a running iterator too, from its next batch on.

        No batch changes. What a worker that is ended was at is done again by another one. Loaders
        of an ``IterableDataset``, or of a dataset with a state, follow with their next iterator.

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
        self._state.workers = num_workers

    def lend_gpu_memory(self) -> Window:
        """Lets the GPU worker work, and borrow memory, within a ``with`` block.

        It does so by itself while training waits for a batch. This is for other times at which
        training leaves the device alone, such as writing a checkpoint. No batch may be asked for
        within the block. When it ends, the worker has left the device, and all memory is back.
        Without a GPU worker in temporal sharing the block has no effect.
        """
        block = self._state.idle_window()
        return nullcontext() if block is None else block()

    def explain(self) -> str:
        """Returns what was compiled and what was not, and why, a line per stage.

        After an epoch lines say their share of workers' time, and the last how long training waits.
        """
        return "\n".join([self._explained(), *measured(self.stats())])

    def _explained(self) -> str:
        seconds = self._state.statistics.workers.part_seconds
        text = self._iterator_factory.explain(LoaderOptions.of(self), seconds)
        return "\n".join([text, *self._state.explain()])

    def stats(self) -> LoaderStats:
        """Returns a snapshot of the counters; ``wait_share`` is the one to look at first.

        ``as_dict()`` has everything as plain values, ``scalars()`` the numbers for a logger.
        """
        return self._stats_reader()()

    def _stats_reader(self) -> Callable[[], LoaderStats]:
        """Returns a function for ``stats()`` that does not keep the loader."""
        return partial(self._state.stats, self._iterator_factory)

    def _described(self) -> DescribedLoader:
        way = self._iterator_factory.way(options := LoaderOptions.of(self))
        return DescribedLoader(type(self).__name__, options, way, self._explained, self.stats())

    def trace(self, path: str | os.PathLike[str], steps: int | None = None) -> Trace:
        """Records a timeline of the next ``steps`` batches, see docs/observe/tracing.md.

        It is written when it ends: with the last of them, its ``with`` block, ``stop()``,
        ``close()``. ``path`` ends in ``.pftrace``, ``.perfetto-trace``, ``.json``, ``.json.gz``.

        Raises:
            OSError: the path cannot be written.
            ValueError: its end is another, or ``steps`` is no positive number.
            ImportError: Perfetto's format without ``pip install 'fusionloader[trace]'``.
            RuntimeError: this loader is being traced already.
        """
        rank, kept = rank_here(), self._iterator_factory.kept_stats
        traced = Traced(rank, self.batch_size, self.tiny_batch_size, kept)
        return self._state.traces.begin(path, steps, traced)

    def state_dict(self) -> State:
        """Returns where the current epoch stands; JSON-serialisable, a few KB.

        Counted are the batches that ``__next__`` has returned, not those prefetched.
        """
        options = LoaderOptions.of(self)
        return self._state.epochs.state(options).to_state(describe_loader(options))

    def load_state_dict(
        self,
        state: State | Sequence[State],
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
        options = LoaderOptions.of(self)
        epoch_state = load_state(options, state, ranks)
        self._shutdown_iterator()
        self._state.epochs.resume(options, epoch_state)

    def close(self) -> None:
        """Ends persistent workers now; the loader can be iterated again.

        The workers of a pool end with the pool. A trace ends, too, what is shared with jobs, and
        what was started on other machines.
        """
        self._shutdown_iterator()
        self._state.leave()
        self._state.traces.stop()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What Accelerate asks before it rebuilds a loader as a plain ``DataLoader``."""
        if not self._prepared and not self._adopted:
            warn_user(
                "Accelerate's prepare() puts a plain DataLoader in the place of this FusionLoader, "
                "without its speed and its options. fusionloader.addons.integrations.accelerate."
                "prepare(accelerator, ...) does the same and keeps it.",
            )
        return self._prepared

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self._prepared = prepared

    def _shutdown_iterator(self) -> None:
        iterator, self._iterator = self._iterator, None
        getattr(iterator, "_shutdown_workers", lambda: None)()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
