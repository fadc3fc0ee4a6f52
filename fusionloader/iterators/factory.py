"""Chooses how a loader's samples are made: in which process, and by a plan or by user code."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from torch.utils.data import Subset
from torch.utils.data import _utils as torch_utils
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from fusionloader.aliases import AnyDataset, AnyLoader
from fusionloader.cache.kept_files import KeptFiles
from fusionloader.cache.store_stats import StoreStats
from fusionloader.coordinated.agreement import check_shareable
from fusionloader.deferred.kept import NO_STORES
from fusionloader.deferred.sample_source import DeferringSource
from fusionloader.executors.collate import is_of_collate
from fusionloader.executors.python import DatasetSource, Seeding, Source
from fusionloader.gpu import eligibility
from fusionloader.iterators.backend import (
    WorkerBackend,
    refuse_for_own_passes,
    refuse_on_error,
)
from fusionloader.iterators.explanation import explained
from fusionloader.iterators.in_process import InProcessIterator
from fusionloader.iterators.loader_state import LoaderState
from fusionloader.iterators.native_backend import NativeBackend
from fusionloader.iterators.python_backend import PythonBackend
from fusionloader.iterators.slot_iterator import SlotIterator
from fusionloader.iterators.stream_iterator import StreamIterator
from fusionloader.iterators.whole_batches import SingleProcessIterator
from fusionloader.manager.worker_passes import WorkerPasses
from fusionloader.options import LoaderOptions
from fusionloader.ranks.discovery import ranks_here
from fusionloader.ranks.sharing_offer import SharingOffers
from fusionloader.sources.datasets import Compiled, compile_dataset
from fusionloader.sources.fetchers import has_state
from fusionloader.sources.fingerprint import Fingerprint
from fusionloader.sources.plan_source import PlanSource
from fusionloader.sources.tables import Tables, is_for_native_workers
from fusionloader.workers import processes

log = logging.getLogger("fusionloader.loader")


class IteratorFactory:
    """Chooses the backend and the iterator of a loader, and remembers what does not change."""

    def __init__(self) -> None:
        self._tables = Tables()
        self._no_layout: tuple[str, Fingerprint] | None = None
        self._changed_by_init: Fingerprint | None = None
        self._said: str | None = None
        self._kept = KeptFiles()
        self._made_offers: SharingOffers | None = None

    def __reduce__(self) -> tuple[type[IteratorFactory], tuple[()]]:
        return IteratorFactory, ()  # a copied or pickled loader finds out for itself

    def iterator(
        self, loader: AnyLoader, options: LoaderOptions, state: LoaderState
    ) -> _BaseDataLoaderIter:
        """Returns a new iterator over ``loader``, whose arguments are ``options`` now."""
        if options.share is not None:  # it may wait for a job that is another thread
            return self._start(loader, options, state)
        with processes.starting():
            return self._start(loader, options, state)

    def _start(
        self, loader: AnyLoader, options: LoaderOptions, state: LoaderState
    ) -> _BaseDataLoaderIter:
        compiled, why_not = self._compiled(options)
        self._log(self._explained(options, compiled, why_not))
        if compiled is not None and compiled.plan is None:
            compiled = None
        check_shareable(options, _why_not_shared(compiled, why_not))
        own_passes = _why_own_passes(options)
        if own_passes:
            refuse_for_own_passes(options, own_passes)
        elif compiled is None and options.auto_collation and (why := _why_whole(options.dataset)):
            refuse_on_error(options, why)
        if options.num_workers == 0:
            of_user = why_not or compiled is None
            if own_passes or (of_user and options.on_error == "raise"):
                return SingleProcessIterator(loader, options, state)
            source = _source_here(options.dataset, compiled)
            return InProcessIterator(
                loader, options, state, source, lambda: _renewed_source_here(options)
            )
        if own_passes:
            states = state.epochs.dataset_states()
            passes = WorkerPasses(options.dataset, states, options.num_workers)
            backend = self._backend(options, None, whole=True, passes=passes)
            return StreamIterator(loader, options, state, backend)
        backend = self._backend(options, compiled, whole=bool(why_not))
        return SlotIterator(loader, options, state, backend)

    def _backend(
        self,
        options: LoaderOptions,
        compiled: Compiled | None,
        whole: bool,
        passes: WorkerPasses | None = None,
    ) -> WorkerBackend:
        """Returns native workers where the plan is the whole way of a sample, else Python ones.

        With ``whole``, Python ones that make whole mini-batches; with ``passes``, each its own.
        """
        remember = functools.partial(self._remember_no_layout, _samples_of(options))
        if compiled is None:
            source: Source = DatasetSource(options.dataset)
            if options.deferred_images == "auto":
                source = DeferringSource(source, self._kept.of_images(options))
            return PythonBackend(source, remember, self._kept.epoch_ended, whole, passes)
        planned: Source = PlanSource(options.dataset, compiled)
        if compiled.tail is not None and options.deferred_images == "auto":
            planned = DeferringSource(planned, NO_STORES)
        python = PythonBackend(planned, remember, whole=whole)
        if whole:
            return python
        of_init = Fingerprint(options.dataset, [options.worker_init_fn])
        if of_init == self._changed_by_init:
            return python
        table = self._tables.of(options.dataset, compiled)
        if table is None:
            return python
        return NativeBackend(
            options.dataset,
            compiled,
            table,
            eligibility.choose(options, compiled),
            self._kept.of(options, table, compiled.kind in ("folder", "ranges")),
            functools.partial(self._remember_change, of_init, python),
            self._offers(options),
        )

    def _offers(self, options: LoaderOptions) -> SharingOffers | None:
        if options.global_manager == "off" or (ranks := ranks_here()) is None:
            return None
        if self._made_offers is None:
            self._made_offers = SharingOffers(ranks)
        return self._made_offers

    def explain(self, options: LoaderOptions, part_seconds: Sequence[float] = ()) -> str:
        """Returns how the loader's samples are made, and why, a line per stage.

        With ``part_seconds``, the time spent on each part, also its share.
        """
        return self._explained(options, *self._compiled(options), part_seconds)

    @staticmethod
    def _explained(
        options: LoaderOptions,
        compiled: Compiled | None,
        why_not: str | None,
        part_seconds: Sequence[float] = (),
    ) -> str:
        return explained(options, compiled, why_not, part_seconds)

    def way(self, options: LoaderOptions) -> str:
        """Returns how the loader's samples are made, in two words."""
        compiled, why_not = self._compiled(options)
        if options.num_workers == 0:
            return "in process"
        if why_not or compiled is None:
            return "whole batches"
        return "native workers" if is_for_native_workers(compiled) else "Python workers"

    def kept_stats(self) -> dict[str, StoreStats]:
        """Returns what is kept of the dataset's files, for ``stats()``."""
        return self._kept.stats()

    def _compiled(self, options: LoaderOptions) -> tuple[Compiled | None, str | None]:
        """Returns what was compiled, and why batches cannot be written sample by sample."""
        if why := _why_own_passes(options):
            return None, why
        if not options.auto_collation:
            return None, "batch_size=None yields samples, not batches"
        if not is_of_collate(options.collate_fn, "default_collate"):
            return None, "a custom collate_fn sees whole mini-batches"
        compiled = compile_dataset(options.dataset, options.decode, options.strict)
        why_not = None
        if self._no_layout is not None:
            why, samples = self._no_layout
            why_not = why if samples == _samples_of(options) else None
        if why_not is None and compiled.plan is None:
            why_not = _why_whole(options.dataset)
        return compiled, why_not

    def _remember_no_layout(self, samples: Fingerprint, why: str) -> None:
        self._no_layout = (why, samples)

    def _remember_change(self, of_init: Fingerprint, python: WorkerBackend) -> WorkerBackend:
        log.info("worker_init_fn changes the dataset: workers look at it in Python")
        self._changed_by_init = of_init
        return python

    def _log(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.info("%s", text.replace("\n", "; "))


def _why_own_passes(options: LoaderOptions) -> str:
    """Returns why each worker goes through the dataset on its own; empty where all share it."""
    if options.dataset_kind == _DatasetKind.Iterable:
        return "an IterableDataset has no indices"
    if has_state(options.dataset):
        return "a dataset with a state_dict() has a state in every worker"
    return ""


def _why_not_shared(compiled: Compiled | None, why_not: str | None) -> str:
    """Returns why samples are not made by native workers; empty where they are."""
    if compiled is None or not is_for_native_workers(compiled):
        return why_not or "its samples are made by Python code, of which nobody can know elsewhere"
    return why_not or ""


def _samples_of(options: LoaderOptions) -> Fingerprint:
    """Returns what decides on the layout of samples: the dataset, and how they are collated."""
    return Fingerprint(options.dataset, torch_utils.collate.default_collate_fn_map)


def _source_here(dataset: AnyDataset, compiled: Compiled | None) -> Source:
    """Returns what makes samples in the training process."""
    if compiled is None or compiled.plan is None:
        source = DatasetSource(dataset)
        source.seeding = Seeding(False, False, False)  # the generators here are the user's
        return source
    return PlanSource(dataset, compiled, in_worker=False)


def _renewed_source_here(options: LoaderOptions) -> Source:
    dataset = options.dataset
    return _source_here(dataset, compile_dataset(dataset, options.decode, options.strict))


def _why_whole(dataset: AnyDataset) -> str | None:
    while type(dataset) is Subset:  # whose __getitems__ is for that of the dataset within
        dataset = dataset.dataset
    if getattr(dataset, "__getitems__", None):
        return f"__getitems__ of {type(dataset).__name__} makes whole mini-batches"
    return None
