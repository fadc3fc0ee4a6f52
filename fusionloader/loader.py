"""``FusionLoader``: the interface of ``torch.utils.data.DataLoader``."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pickle import PicklingError
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from typing_extensions import Self  # torch needs it, too

from fusionloader.data.epochs.identity import describe_loader
from fusionloader.data.epochs.loading import load_state
from fusionloader.data.epochs.sampling import set_sampler_epochs
from fusionloader.engine.iterators.loader_state import Window
from fusionloader.observe.representation import DescribedLoader, Shown, measured
from fusionloader.observe.statistics.loader_statistics import rank_here
from fusionloader.observe.statistics.snapshot import LoaderStats
from fusionloader.observe.trace.recorder import Traced
from fusionloader.observe.trace.recording import Trace
from fusionloader.options.aliases import Batch, Index, Sample, State
from fusionloader.options.cache_settings import Cache
from fusionloader.options.gpu_settings import GpuWorker
from fusionloader.options.loader_options import (
    AugmentPer,
    Decode,
    DeferredImages,
    FusionOptions,
    LoaderOptions,
    OnError,
    RankSharing,
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

    Arguments of ``DataLoader`` have the same meanings and defaults. Image folders, shards and pixel
    arrays whose transforms can be compiled run natively, and tensors in memory are gathered.
    Samples of other map-style datasets with the default collate are written one by one into shared
    memory. With a custom ``collate_fn``, an ``IterableDataset`` and samples of varying shape, a
    worker makes whole batches. ``explain()`` says which of these applies, and why.

    The constructor only stores its arguments, each as an attribute of the same name. Processes and
    shared memory are created by ``iter()``.

    Args: Everyday
        dataset: as in ``DataLoader``, as are all arguments up to ``in_order``.
        sampler: as in ``DataLoader``. Indices are passed to the dataset unchanged.
        pin_memory: as in ``DataLoader``; batches are page-locked in place, not copied.
        device: device to which batches are delivered; ``None`` leaves them in host memory.
        seed: seed of all random draws of an epoch but those of user code with ``num_workers=0``.
            ``None`` draws one per iterator from ``generator``, as torch draws the base seed of its
            workers.
        cache: a ``Cache`` that stores what the first epoch reads and decodes, for plans that run
            wholly in workers on image files, and for files that user code opens in workers. Ranks
            and jobs of a machine share it. Random transforms are still drawn in every epoch, and
            pixels are the same as without it. A file that has changed is read again.
        snapshot_every_n_steps: as in torchdata's ``StatefulDataLoader``, and without effect:
            ``state_dict()`` is exact after every step.

    Args: Performance
        tiny_batch_size: number of samples in a tiny-batch, the unit that workers claim.
        decode: ``"exact"`` gives the pixels of Pillow and torchvision; ``"fast"`` may decode JPEGs
            at reduced scale, and transforms tensors as torchvision transforms PIL images.
        jpeg_index: ``"auto"`` stores decoder positions within each JPEG in shared memory, for the
            same files as ``cache``, so that later epochs begin to decode near the crop. A path also
            saves the index of a plan to a file in an existing folder, from which the next loader
            reads it.
        augment_per: ``"sample"`` draws augmentations for every sample; ``"tiny_batch"`` draws them
            once for ``tiny_batch_size`` neighbours in a batch, as FusionFlow does (each operation
            is as frequent, but for ``tiny_batch_size`` samples at a time). Crops, flips that are
            transforms of their own, and Python transforms are drawn for every sample in both.
        deferred_images: ``"auto"`` decodes image files that user code opens with Pillow natively,
            with their crops and transforms, when the pixels are first used: in workers, and in the
            training process while it fetches. ``"tensors"`` also defers the tensors that image
            decoders, ``ToImage`` and ``PILToTensor`` return; a sample whose code fails with them
            is made again without. ``"off"`` leaves images to the libraries.
        cpu_affinity: ``"auto"`` gives each worker of a plan a dedicated core if the machine has
            enough cores; ``"off"`` leaves placement to the kernel. An affinity set by
            ``worker_init_fn`` is kept. For workers of a pool, the pool's setting applies.
        max_shared_bytes: shared memory that mini-batches in flight may take, in bytes or as
            ``"2GiB"``. If ``prefetch_factor * num_workers`` batches would take more, fewer are made
            ahead, but at least two. ``None``: a quarter of the free memory.
        gpu_worker: whether a worker on the device makes the largest samples of each batch.
            ``None``: never, since its pixels may differ by a decoder's rounding. ``"auto"``: if
            ``device`` is a CUDA device, DALI is installed, the plan allows it and it is faster. Or
            a ``GpuWorker``.

    Args: Faults
        on_error: handling of a sample that cannot be read or transformed. ``"raise"`` raises its
            exception, ``"skip"`` leaves it out of its batch, ``"substitute"`` takes another sample
            of the dataset, also one that the sampler never gives. With an ``IterableDataset``,
            ``__getitems__`` or a dataset with a ``state_dict()`` iterating raises ``ValueError``
            unless ``"raise"``.
        strict: whether a truncated JPEG raises, as in Pillow, even if its crop is complete;
            ``False`` accepts it if all pixels of the crop are there.
        stall_timeout: seconds after which a worker that is still at the same sample, while training
            waits, is logged and killed, and another one does its work (docs/guide/faults.md); 0:
            never. ``None``: 60 for plans, never if user code makes samples.

    Args: Sharing
        pool: a ``WorkerPool`` whose workers serve this loader and others. ``num_workers`` is then
            that of the pool, and need not be given.
        global_manager: ``"auto"`` lets ranks that ``torchrun`` started on one machine share
            idle workers of plans, which changes no batch. ``"all"`` also shares workers that run
            user code; samples then have to depend on the pickled dataset alone
            (docs/scale/many_ranks.md). ``"off"`` shares none.
        share: a name; all jobs of this machine and user with the same name prepare each mini-batch
            once, for all of them. Everything that a batch depends on has to be equal
            (docs/scale/coordinated_prep.md).
        remote: addresses of workers on other machines, ``"auto"`` for those of a Ray cluster, or a
            ``Remote``. They prepare samples that this machine cannot make in time
            (docs/scale/remote_workers.md).

    Raises:
        ValueError: as in ``DataLoader``, and if an argument above is out of its range.
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
    global_manager: RankSharing
    pool: WorkerPool | None
    cpu_affinity: Switch
    deferred_images: DeferredImages
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
        global_manager: Literal["auto", "all", "off"] = "auto",
        pool: WorkerPool | None = None,
        cpu_affinity: Literal["auto", "off"] = "auto",
        deferred_images: Literal["auto", "tensors", "off"] = "auto",
        max_shared_bytes: int | str | None = None,
        share: str | None = None,
        stall_timeout: float | None = None,
        remote: Remote | Literal["auto"] | Sequence[str] | None = None,
        snapshot_every_n_steps: int | None = 1,
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
        self.snapshot_every_n_steps: int | None = snapshot_every_n_steps
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

    def __copy__(self) -> Self:
        own = {"_state": LoaderParts(), "_iterator_factory": iterator_factory(), "_iterator": None}
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__ | own)
        return made

    def __iter__(self) -> _BaseDataLoaderIter:
        if self._iterator is not None and self._iterator_pid != os.getpid():
            self._iterator = None  # this process is a fork; the workers belong to its parent
        fixed = getattr(self._iterator, "fixed_workers", None)
        if fixed not in (None, self.num_workers):
            self._shutdown_iterator()
        self._state.traces.iter_called()
        epochs = self._state.epochs
        before = epochs.current
        try:
            with self._state.statistics.waits.entering_iter():
                return super().__iter__()
        except BaseException:
            if epochs.current is not before:
                epochs.restart()  # the next call begins where this one would have
            raise

    def _get_iterator(self) -> _BaseDataLoaderIter:
        self._iterator_pid = os.getpid()
        if self.pool is not None:  # the attribute num_workers may have been changed
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

        Raises:
            TypeError: it is no integer.
            ValueError: it is negative, or has more than 64 bits.
        """
        epoch = operator.index(epoch)
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch should be a number of at most 64 bits, not {epoch!r}")
        self._state.epochs.set_epoch(epoch)
        set_sampler_epochs(LoaderOptions.of(self), epoch)

    def resize_workers(self, num_workers: int) -> None:
        """Sets the number of workers; a running iterator follows with its next batch.

        No batch changes: tiny-batches of an ended worker are made again by another one. With an
        ``IterableDataset``, or a dataset with a state, only the next iterator follows.

        Raises:
            ValueError: not a positive number, or the loader has no worker processes of its own.
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
        """Returns a ``with`` block within which the GPU worker runs and may borrow memory.

        The worker does so anyway while training waits for a batch. The block is for other times at
        which training does not use the device, such as writing a checkpoint. The loader must not be
        iterated within it. At its end the worker has left the device and returned all memory.
        Without a GPU worker in temporal sharing the block has no effect.
        """
        block = self._state.idle_window()
        return nullcontext() if block is None else block()

    def explain(self) -> str:
        """Returns a text that says what was compiled and what was not, and why, a line per stage.

        After an epoch, lines have the stage's share of workers' time, and the last line says how
        long training waits.
        """
        return "\n".join([self._explained(), *measured(self.stats())])

    def _explained(self) -> str:
        seconds = self._state.statistics.all_workers.total().part_seconds
        text = self._iterator_factory.explain(LoaderOptions.of(self), seconds)
        return "\n".join([text, *self._state.explain()])

    def stats(self) -> LoaderStats:
        """Returns a snapshot of the counters; ``wait_share`` is the first one to look at.

        Its ``as_dict()`` has all counters as plain values, ``scalars()`` the numbers for a logger.
        """
        return self._stats_reader()()

    def _stats_reader(self) -> Callable[[], LoaderStats]:
        """Returns a function like ``stats`` that holds no reference to the loader."""
        return partial(self._state.stats, self._iterator_factory.cache_stats)

    def _described(self) -> DescribedLoader:
        way = self._iterator_factory.way(options := LoaderOptions.of(self))
        return DescribedLoader(type(self).__name__, options, way, self._explained, self.stats())

    def trace(self, path: str | os.PathLike[str], steps: int | None = None) -> Trace:
        """Records a timeline of the next ``steps`` batches, see docs/observe/tracing.md.

        The file is written at the end of the trace: after the last batch, at the end of its
        ``with`` block, by ``stop()`` or by ``close()``. ``path`` ends in ``.pftrace``,
        ``.perfetto-trace``, ``.json`` or ``.json.gz``.

        Raises:
            OSError: the path cannot be written.
            ValueError: the path has another suffix, or ``steps`` is not a positive number.
            ImportError: Perfetto's format without ``pip install 'fusionloader[trace]'``.
            RuntimeError: this loader is being traced already.
        """
        rank, cache_stats = rank_here(), self._iterator_factory.cache_stats
        processors = self._state.statistics.processors
        traced = Traced(rank, self.batch_size, self.tiny_batch_size, cache_stats, processors)
        return self._state.traces.begin(path, steps, traced)

    def state_dict(self) -> State:
        """Returns the position in the current epoch; JSON-serialisable, a few KB.

        Counts the batches that ``__next__`` has returned, not those prefetched.
        """
        options = LoaderOptions.of(self)
        return self._state.epochs.state(options).to_state(describe_loader(options))

    def load_state_dict(
        self, state: State | Sequence[State], *, ranks: Literal["same", "reshard"] = "same"
    ) -> None:
        """Makes the next ``iter()`` continue where ``state_dict()`` was called.

        The remaining batches are bit-identical to those of an uninterrupted run. Samples already
        delivered are not read again. (An ``IterableDataset`` is iterated again from its start.)
        A ``DistributedSampler`` is set to the epoch of the state.

        With ``ranks="reshard"`` the number of ranks, ``batch_size`` and ``drop_last`` may differ
        from those of the state. The samples of the epoch that no rank has delivered are divided
        among the ranks of this loader's ``DistributedSampler``, with the same random draws. Its
        rule makes the shares equal: some samples are repeated, or left out with its ``drop_last``.
        If nothing differs, the batches are those of an uninterrupted run.

        Args:
            state: state of this rank. With ``ranks="reshard"`` that of any rank, if all ranks had
                delivered the same number of batches, or a list with the states of all ranks.
            ranks: ``"same"`` refuses a state of another number of ranks.

        Raises:
            ValueError: the state is of another dataset, batch size, world size or version, or of an
                epoch that a ``DistributedSampler`` ordered otherwise, or cannot be resharded.
        """
        options = LoaderOptions.of(self)
        epoch_state = load_state(options, state, ranks)
        if epoch_state.share is not None and not epoch_state.finished:
            set_sampler_epochs(options, epoch_state.share.epoch)
        self._shutdown_iterator()
        self._state.epochs.resume(options, epoch_state)

    def close(self) -> None:
        """Ends persistent workers now; the loader can be iterated again.

        Also ends a trace, the membership of a group of jobs (``share``), and workers started on
        other machines. The workers of a pool end with the pool.
        """
        self._shutdown_iterator()
        self._state.leave()
        self._state.traces.stop()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Read by Accelerate before it replaces a loader by a plain ``DataLoader``."""
        if not self._prepared and not self._adopted:
            warn_user(
                "Accelerate's prepare() puts a plain DataLoader in the place of this FusionLoader, "
                "without its speed and its options. fusionloader.addons.integrations.accelerate."
                "prepare(accelerator, ...) does the same and keeps it."
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

    def __exit__(self, *_: object) -> None:
        self.close()
