"""How a loader's samples are made: which executor, which iterator, which kind of worker process."""

from __future__ import annotations

import functools
import logging
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index as as_integer
from operator import itemgetter
from typing import Any, Protocol

import torch
from PIL import Image, ImageFile
from torch.utils.data import Subset
from torch.utils.data import _utils as torch_utils
from torch.utils.data.dataloader import _DatasetKind

from fusionloader.executors.collate import is_of_collate
from fusionloader.executors.layout import Layout
from fusionloader.executors.plan_source import PlanSource, result_like
from fusionloader.executors.python import DatasetSource, SampleKey, Seeding, Source
from fusionloader.plan.arrays import PixelArrays
from fusionloader.plan.datasets import Compiled, compile_dataset
from fusionloader.runtime import (
    gpu_choice,
    kept_files,
    light_worker,
    object_worker,
    prepared_worker,
    processes,
)
from fusionloader.runtime.epoch import Epochs
from fusionloader.runtime.fingerprint import Fingerprint
from fusionloader.runtime.gpu_choice import GpuChoice
from fusionloader.runtime.gpu_control import GpuOptions
from fusionloader.runtime.kept_files import KeptFiles
from fusionloader.runtime.lender import Lender
from fusionloader.runtime.membership import Lending
from fusionloader.runtime.pillow_formats import AddedFormats
from fusionloader.runtime.processes import Descriptor, Process
from fusionloader.runtime.ranks import ranks_here
from fusionloader.runtime.stateful import has_state
from fusionloader.scheduler.tiny_batches import order_by_size
from fusionloader.shm.dataset_table import DatasetTable
from fusionloader.shm.objects import SharedMemoryExhausted

log = logging.getLogger("fusionloader.loader")

Starter = Callable[[Any, int, int], Process]
"""Starts worker number ``n`` of a manager, sending its messages to a descriptor."""

_NO_ITEM = -1


class Recipe(Protocol):
    """What the slot iterator needs to know of the samples."""

    layout: Layout | None
    count: int
    gpu: GpuOptions | None
    lending: Lending | None

    def name(self, index: Any) -> str:
        """Returns a sample's name for messages."""

    def describe(self, indices: list[Any]) -> tuple[list[int], list[int], bytes]:
        """Returns items for the workers, rows smallest sample first, and pickled indices."""

    def starter(self, loader: Any, base_seed: int) -> Starter:
        """Returns the function that starts a worker."""

    def no_layout(self, why: str) -> None:
        """Notes that the samples cannot be written row by row."""

    def epoch_ended(self) -> None:
        """Called when the last batch of an epoch was delivered."""

    def of_workers_dataset(self) -> Recipe:
        """Returns the recipe for workers whose ``worker_init_fn`` changes the dataset."""


class ObjectRecipe:
    """Workers run Python: the user's dataset, or a compiled plan with a Python tail."""

    layout: Layout | None = None
    gpu: GpuOptions | None = None
    lending: Lending | None = None

    def __init__(self, source: Source, no_layout: Callable[[str], None]) -> None:
        self._source = source
        self.count = source.count()
        self.no_layout = no_layout

    def of_workers_dataset(self) -> Recipe:
        """Returns this: every worker looks at the dataset that it has."""
        return self

    def epoch_ended(self) -> None:
        """Has nothing to do then."""

    def name(self, index: Any) -> str:
        """Returns a sample's name for messages."""
        return self._source.name(SampleKey(index, 0, 0, 0, 0))

    def describe(self, indices: list[Any]) -> tuple[list[int], list[int], bytes]:
        """Returns plain indices as they are, others pickled; rows in the sampler's order."""
        rows = list(range(len(indices)))
        if all(type(index) is int and -(1 << 63) <= index < 1 << 63 for index in indices):
            return indices, rows, b""
        return [_NO_ITEM] * len(indices), rows, pickle.dumps(indices)

    def starter(self, loader: Any, base_seed: int) -> Starter:
        """Returns a function that starts the user's code in a multiprocessing process."""
        context, method = _context(loader)
        init, on_error = loader.worker_init_fn, loader.on_error
        source = self._source

        def start(manager: Any, number: int, message_fd: int) -> Process:
            config = object_worker.ObjectWorkerConfig(
                worker=number,
                workers=manager.worker_count,
                parent=_parent(method),
                control=Descriptor(manager.control_fd),
                data=Descriptor(manager.arena.fd),
                message=Descriptor(message_fd),
                source=source,
                base_seed=base_seed,
                worker_init_fn=init,
                on_error=on_error,
            )
            return processes.start(context, object_worker.main, config)

        return start


class TableRecipe:
    """Files or pixels whose transforms are wholly compiled: workers run no Python per sample."""

    def __init__(
        self,
        dataset: Any,
        compiled: Compiled,
        table: DatasetTable,
        choice: GpuChoice,
        kept: KeptFiles,
        of_workers_dataset: Callable[[], Recipe],
        lender: Lender | None = None,
    ) -> None:
        self.of_workers_dataset = of_workers_dataset
        self._kept = kept
        self._dataset = dataset
        self._compiled = compiled
        self._table = table
        self.count = len(table)
        assert compiled.plan is not None
        self._plan = compiled.plan
        layout = layout_of(compiled)
        assert isinstance(layout, Layout)
        self.layout: Layout | None = layout
        row_bytes = layout.leaves[0].nbytes
        self.gpu = gpu_choice.gpu_options(choice, compiled.plan, table, row_bytes)
        self.lending = lender.lending(self._plan, table) if lender is not None else None

    def name(self, index: Any) -> str:
        """Returns ``index 5 (cats/5.jpg)``."""
        return self._compiled.name(self._dataset, index)

    def describe(self, indices: list[Any]) -> tuple[list[int], list[int], bytes]:
        """Returns numbers in the table, ``-1`` for indices that the dataset does not have."""
        items = [self._item(index) for index in indices]
        sizes = self._table.sizes
        rows = order_by_size([int(sizes[item]) if item >= 0 else 0 for item in items])
        return items, rows, b""

    def _item(self, index: Any) -> int:
        try:
            item = as_integer(index)
        except TypeError:
            return _NO_ITEM
        item += self.count if item < 0 else 0
        return item if 0 <= item < self.count else _NO_ITEM

    def starter(self, loader: Any, base_seed: int) -> Starter:
        """Returns a function that starts workers without torch, unless the user's code runs."""
        context, method = _context(loader)
        init, dataset = loader.worker_init_fn, loader.dataset
        on_error, table, plan = loader.on_error, self._table, self._plan
        pixels, indexes = self._kept.pixels, self._kept.indexes
        formats = AddedFormats()
        if self._compiled.kind == "folder" and method != "fork":
            formats = AddedFormats.here()

        def start(manager: Any, number: int, message_fd: int) -> Process:
            event_fd, address = -1, ""
            if manager.membership is not None:
                event_fd, address = manager.membership.event_fd, manager.membership.address
            config = light_worker.LightWorkerConfig(
                worker=number,
                parent=_parent(method),
                control_fd=manager.control_fd,
                data_fd=manager.arena.fd,
                table_fd=table.fd,
                table_bytes=table.nbytes,
                message_fd=message_fd,
                plan=plan,
                on_error=on_error,
                event_fd=event_fd,
                address=address,
                load_truncated=ImageFile.LOAD_TRUNCATED_IMAGES,
                max_pixels=Image.MAX_IMAGE_PIXELS,
                formats=formats,
                pixels_fd=-1 if pixels is None else pixels.fd,
                pixels_bytes=0 if pixels is None else pixels.nbytes,
                indexes_fd=-1 if indexes is None else indexes.fd,
                indexes_bytes=0 if indexes is None else indexes.nbytes,
            )
            fds = config.descriptors()
            if init is not None or formats.of_script:
                descriptors = {name: Descriptor(fd) for name, fd in fds.items()}
                info = (manager.worker_count, base_seed, dataset, init)
                return processes.start(context, prepared_worker.main, config, descriptors, info)
            if method == "fork":
                return processes.start(context, light_worker.main, config)
            config = replace(config, parent=os.getpid())
            where = "fusionloader.runtime.light_worker"
            return processes.BareProcess(where, config, tuple(fds.values()))

        return start

    def no_layout(self, why: str) -> None:
        """Never called: the layout is known from the plan."""
        raise AssertionError(why)

    def epoch_ended(self) -> None:
        """Says what the workers found out about memory."""
        self._kept.epoch_ended()


def layout_of(compiled: Compiled) -> Layout | str:
    """Returns the layout of a complete plan's samples, or why they have none."""
    assert compiled.plan is not None
    return Layout.of((result_like(compiled.plan), 0))


class Recipes:
    """Chooses the recipe and the iterator of a loader, and remembers what does not change."""

    def __init__(self) -> None:
        self._files: tuple[list[tuple[str, int]], DatasetTable] | None = None
        self._pixels: DatasetTable | None = None
        self._no_layout: tuple[str, Fingerprint] | None = None
        self._changed_by_init: Fingerprint | None = None
        self._said: str | None = None
        self._kept = KeptFiles()
        self._made_lender: Lender | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipes, ()  # a copied or pickled loader finds out for itself

    def iterator(self, loader: Any, epochs: Epochs) -> Any:
        """Returns a new iterator over ``loader``."""
        from fusionloader.runtime.in_process import InProcessIterator
        from fusionloader.runtime.slot_iterator import SlotIterator
        from fusionloader.runtime.whole_batches import SingleProcessIterator, WholeBatchIterator

        compiled, why_not = self._compiled(loader)
        self._log(_explained(loader, compiled, why_not))
        remember = functools.partial(self._remember_no_layout, _samples_of(loader))
        if compiled is not None and compiled.plan is None:
            compiled = None
        if loader.num_workers == 0:
            if compiled is not None and not why_not:
                source = _source_here(loader.dataset, compiled)
                renew = functools.partial(
                    _renewed_source_here, loader.dataset, loader.decode, loader.strict
                )
                return InProcessIterator(loader, epochs, source, renew)
            return SingleProcessIterator(loader, epochs)
        if why_not:
            return WholeBatchIterator(loader, epochs)
        if compiled is None:
            recipe: Recipe = ObjectRecipe(DatasetSource(loader.dataset), remember)
        else:
            python = ObjectRecipe(PlanSource(loader.dataset, compiled), remember)
            of_init = Fingerprint(loader.dataset, [loader.worker_init_fn])
            table = None
            if of_init != self._changed_by_init:
                table = self._table_of(loader.dataset, compiled)
            if table is None:
                recipe = python
            else:
                outdated = functools.partial(self._remember_change, of_init, python)
                choice = gpu_choice.choose(loader, compiled)
                kept = self._kept.of(loader, table, compiled.kind == "folder")
                lender = self._lender(loader)
                recipe = TableRecipe(
                    loader.dataset, compiled, table, choice, kept, outdated, lender
                )
        return SlotIterator(loader, epochs, recipe)

    def _lender(self, loader: Any) -> Lender | None:
        if loader.global_manager == "off" or (ranks := ranks_here()) is None:
            return None
        if self._made_lender is None:
            self._made_lender = Lender(ranks)
        return self._made_lender

    def explain(self, loader: Any, part_seconds: Sequence[float] = ()) -> str:
        """Returns how the loader's samples are made, and why, a line per stage.

        With ``part_seconds``, the time spent on each part, also its share.
        """
        return _explained(loader, *self._compiled(loader), part_seconds)

    def kept_stats(self) -> dict[str, Any]:
        """Returns what is kept of the dataset's files, for ``stats()``."""
        return self._kept.stats()

    def _compiled(self, loader: Any) -> tuple[Compiled | None, str | None]:
        """Returns what was compiled, and why batches cannot be written sample by sample."""
        if loader._dataset_kind == _DatasetKind.Iterable:
            return None, "an IterableDataset has no indices"
        if not loader._auto_collation:
            return None, "batch_size=None yields samples, not batches"
        if not is_of_collate(loader.collate_fn, "default_collate"):
            return None, "a custom collate_fn sees whole mini-batches"
        if has_state(loader.dataset):
            return None, "a dataset with a state_dict() has a state in every worker"
        compiled = compile_dataset(loader.dataset, loader.decode, loader.strict)
        why_not = None
        if self._no_layout is not None:
            why, samples = self._no_layout
            why_not = why if samples == _samples_of(loader) else None
        if why_not is None and compiled.plan is None:
            why_not = _why_whole(loader.dataset)
        return compiled, why_not

    def _table_of(self, dataset: Any, compiled: Compiled) -> DatasetTable | None:
        """Returns the dataset in shared memory, made once while it stays the same.

        ``None`` when workers have to run Python: a tail, bytes from the dataset, odd targets,
        collate functions of the user's own.
        """
        if not compiled.complete or isinstance(layout_of(compiled), str):
            return None
        if compiled.kind == "pixels":
            return self._pixel_table(compiled.arrays(dataset))
        if compiled.kind != "folder":
            return None
        samples = compiled.samples(dataset)
        if self._files is None or self._files[0] != samples:
            targets = list(map(itemgetter(1), samples))  # a million in less than a loop takes
            if set(map(type, targets)) != {int}:
                return None
            paths = list(map(itemgetter(0), samples))
            self._files = (list(samples), DatasetTable.of_files(paths, targets))
        return self._files[1]

    def _pixel_table(self, arrays: PixelArrays) -> DatasetTable | None:
        if not len(arrays.targets) or arrays.odd:
            return None
        table = self._pixels
        if table is None or not table.has_pixels(arrays.images, arrays.targets):
            self._pixels = None
            try:
                self._pixels = DatasetTable.of_pixels(arrays.images, arrays.targets)
            except SharedMemoryExhausted as error:
                log.warning("every worker keeps the images of the dataset for itself: %s", error)
        return self._pixels

    def _remember_no_layout(self, samples: Fingerprint, why: str) -> None:
        self._no_layout = (why, samples)

    def _remember_change(self, of_init: Fingerprint, python: Recipe) -> Recipe:
        log.info("worker_init_fn changes the dataset: workers look at it in Python")
        self._changed_by_init = of_init
        return python

    def _log(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.info("%s", text.replace("\n", "; "))


def _samples_of(loader: Any) -> Fingerprint:
    """Returns what decides on the layout of samples: the dataset, and how they are collated."""
    return Fingerprint(loader.dataset, torch_utils.collate.default_collate_fn_map)


def _explained(
    loader: Any,
    compiled: Compiled | None,
    why_not: str | None,
    part_seconds: Sequence[float] = (),
) -> str:
    if why_not:
        lines = [f"whole batches per worker, as torch's DataLoader: {why_not}"]
    elif loader.num_workers == 0:
        lines = ["in the training process, because num_workers=0"]
    else:
        lines = [f"{loader.num_workers} workers write samples into shared batches"]
    if not why_not:
        assert compiled is not None
        lines.append(compiled.explain(part_seconds))
    lines += kept_files.explain(loader, _why_nothing_is_kept(loader, compiled, why_not))
    if gpu := gpu_choice.choose(loader, None if why_not else compiled).explain():
        lines.append(gpu)
    return "\n".join(lines)


def _why_nothing_is_kept(loader: Any, compiled: Compiled | None, why_not: str | None) -> str:
    """Returns why workers keep nothing of files; empty where they may."""
    if why_not or loader.num_workers == 0:
        return "samples are not made by workers of a plan"
    if compiled is None or compiled.plan is None or compiled.kind != "folder":
        return "the samples are not read from image files by a plan"
    if not compiled.complete or isinstance(layout_of(compiled), str):
        return "a part of the plan runs in Python"
    return ""


def _source_here(dataset: Any, compiled: Compiled) -> Source:
    """Returns what makes samples in the training process."""
    if compiled.plan is None:
        source = DatasetSource(dataset)
        source.seeding = Seeding(False, False, False)  # the generators here are the user's
        return source
    return PlanSource(dataset, compiled, in_worker=False)


def _renewed_source_here(dataset: Any, decode: Any, strict: bool) -> Source:
    return _source_here(dataset, compile_dataset(dataset, decode, strict))


def _why_whole(dataset: Any) -> str | None:
    while type(dataset) is Subset:  # whose __getitems__ is for that of the dataset within
        dataset = dataset.dataset
    if getattr(dataset, "__getitems__", None):
        return f"__getitems__ of {type(dataset).__name__} makes whole mini-batches"
    return None


def _context(loader: Any) -> tuple[Any, str]:
    context = loader.multiprocessing_context
    if context is None:
        context = torch.multiprocessing.get_context()
    return context, str(context.get_start_method())


def _parent(method: str) -> int:
    """Returns the pid that workers watch, 0 for "whoever starts you" (a fork server)."""
    return 0 if method == "forkserver" else os.getpid()
