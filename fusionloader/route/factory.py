"""Makes the iterators of a loader, each according to its route."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from torch.utils.data.dataloader import _BaseDataLoaderIter

from fusionloader.cache.loader_cache import LoaderCache
from fusionloader.cache.store_stats import StoreStats
from fusionloader.data.deferred.file_cache import NO_STORES
from fusionloader.data.deferred.sample_source import DeferringSource
from fusionloader.data.sources.datasets import Compiled, compile_dataset
from fusionloader.data.sources.fingerprint import Fingerprint
from fusionloader.engine.delivery.first_calls import call_once
from fusionloader.engine.iterators.backend import WorkerBackend
from fusionloader.engine.iterators.in_process import GatheredIterator, InProcessIterator
from fusionloader.engine.iterators.single_process import SingleProcessIterator
from fusionloader.engine.iterators.slot_iterator import SlotIterator
from fusionloader.engine.iterators.stream_iterator import StreamIterator
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.options.aliases import AnyDataset, AnyLoader
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.route.explanation import explained
from fusionloader.route.loader_parts import LoaderParts
from fusionloader.route.native_backend import NativeBackend
from fusionloader.route.python_backend import FileOrder, PythonBackend
from fusionloader.route.route import (
    Learned,
    Route,
    find_route,
    find_sample_files,
    init_fingerprint,
    layout_fingerprint,
    why_lists,
    why_own_passes,
)
from fusionloader.route.starting import refuse_for_own_passes, refuse_on_error
from fusionloader.sharing.jobs.agreement import check_shareable
from fusionloader.sharing.jobs.group_iterator import GroupIterator
from fusionloader.sharing.ranks.discovery import ranks_here
from fusionloader.sharing.ranks.sharing_offer import SharingOffers
from fusionloader.system import processes
from fusionloader.system.finalizers import refuse_at_exit
from fusionloader.transforms.executors.python import DatasetSource, Seeding, Source

log = logging.getLogger("fusionloader.loader")


class IteratorFactory:
    """Makes the iterators of a loader, and keeps what is learned and cached between them."""

    def __init__(self) -> None:
        self._learned = Learned()
        self._said: str | None = None
        self._cache = LoaderCache()
        self._made_offers: SharingOffers | None = None

    def __reduce__(self) -> tuple[type[IteratorFactory], tuple[()]]:
        return IteratorFactory, ()  # a copied or pickled loader starts without findings

    def iterator(
        self, loader: AnyLoader, options: LoaderOptions, state: LoaderParts
    ) -> _BaseDataLoaderIter:
        """Returns a new iterator over ``loader``, whose current arguments are ``options``."""
        with processes.starting():
            if options.num_workers > 0:
                call_once()
            if options.share is None:
                return self._start(loader, options, state)
        # Without the lock: it may wait for a job in another thread.
        return self._start(loader, options, state)

    def _start(
        self, loader: AnyLoader, options: LoaderOptions, state: LoaderParts
    ) -> _BaseDataLoaderIter:
        refuse_at_exit()
        route = find_route(options, self._learned)
        self._log(explained(options, route))
        _check(options, route)
        if route.way == "torch's loop":
            return SingleProcessIterator(loader, options, state)
        if route.way in ("in process", "gathered"):
            source = _source_here(options.dataset, route.plan)
            kind = GatheredIterator if route.way == "gathered" else InProcessIterator
            return kind(loader, options, state, source, lambda: _renewed_source_here(options))
        if route.way == "own passes":
            states = state.epochs.dataset_states()
            in_flight = None if options.in_order else options.in_flight
            passes = WorkerPasses(options.dataset, states, options.num_workers, in_flight)
            backend = self._backend(options, route, state, passes)
            return StreamIterator(loader, options, state, backend)
        backend = self._backend(options, route, state)
        if options.share is not None and isinstance(backend, (NativeBackend, PythonBackend)):
            member = state.member(options.share)
            return GroupIterator(loader, options, state, backend, member, backend.agreement)
        return SlotIterator(loader, options, state, backend)

    def _backend(
        self,
        options: LoaderOptions,
        route: Route,
        parts: LoaderParts,
        passes: WorkerPasses | None = None,
    ) -> WorkerBackend:
        """Returns native workers if the plan makes the whole sample, else Python workers."""
        remember = functools.partial(self._remember_no_layout, layout_fingerprint(options))
        plan, whole = route.plan, bool(route.why_whole)
        if plan is None:
            source: Source = DatasetSource(options.dataset)
            if options.deferred_images != "off":
                stores = self._cache.for_images(options)
                source = DeferringSource(source, stores, options.deferred_images == "tensors")
            offers = None if passes is not None else self._code_offers(options)
            order = _file_order(options, route)
            return PythonBackend(
                source, parts, remember, self._cache.epoch_ended, whole, passes, offers, order
            )
        planned = _planned(options.dataset, plan)
        if plan.has_tail and options.deferred_images != "off":
            tensors = options.deferred_images == "tensors"
            planned = DeferringSource(planned, NO_STORES, tensors)
        offers = self._code_offers(options)
        python = PythonBackend(planned, parts, remember, whole=whole, offers=offers)
        table = self._learned.tables.of(plan) if route.is_native else None
        if table is None:
            return python
        return NativeBackend(
            plan,
            table,
            route.gpu,
            parts,
            self._cache.for_table(options, table, plan.kind in ("folder", "ranges")),
            functools.partial(self._remember_change, init_fingerprint(options), python),
            self._offers(options),
        )

    def _offers(self, options: LoaderOptions) -> SharingOffers | None:
        if options.global_manager == "off" or (ranks := ranks_here()) is None:
            return None
        if self._made_offers is None:
            self._made_offers = SharingOffers(ranks)
        return self._made_offers

    def _code_offers(self, options: LoaderOptions) -> SharingOffers | None:
        """Returns the offers of workers that run user code, which are shared on request alone."""
        return self._offers(options) if options.global_manager == "all" else None

    def explain(self, options: LoaderOptions, part_seconds: Sequence[float] = ()) -> str:
        """Returns the text of ``FusionLoader.explain``; see ``explained``."""
        why_alone = "" if self._made_offers is None else self._made_offers.why_not
        return explained(options, find_route(options, self._learned), part_seconds, why_alone)

    def way(self, options: LoaderOptions) -> str:
        """Returns the name of the loader's ``Way``."""
        return find_route(options, self._learned).way

    def cache_stats(self) -> dict[str, StoreStats]:
        """Returns the statistics of the caches of the dataset's files, by store."""
        return self._cache.stats()

    def _remember_no_layout(self, samples: Fingerprint, why: str) -> None:
        self._learned.no_layout = (why, samples)

    def _remember_change(self, init: Fingerprint, python: WorkerBackend) -> WorkerBackend:
        log.info("worker_init_fn changes the dataset: workers run Python from now on")
        self._learned.changed_by_init = init
        return python

    def _log(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.info("%s", text.replace("\n", "; "))


def _check(options: LoaderOptions, route: Route) -> None:
    """Raises ValueError for arguments that this route does not support."""
    check_shareable(options, why_own_passes(options))
    if own := why_own_passes(options):
        refuse_for_own_passes(options, own)
    elif route.plan is None and options.auto_collation and (why := why_lists(options.dataset)):
        refuse_on_error(options, why)


def _file_order(options: LoaderOptions, route: Route) -> FileOrder | None:
    """Returns what orders the samples of a mini-batch by file; ``None`` for the sampler's order."""
    files = find_sample_files(options, route)
    if isinstance(files, str):
        return None
    return FileOrder(files, options.tiny_batch_size)


def _source_here(dataset: AnyDataset, compiled: Compiled | None) -> Source:
    """Returns the source of samples in the training process."""
    if compiled is None or compiled.plan is None:
        source = DatasetSource(dataset)
        source.seeding = Seeding(False, False, False)  # this process's generators are the user's
        return source
    return _planned(dataset, compiled, in_worker=False)


def _planned(dataset: AnyDataset, compiled: Compiled, in_worker: bool = True) -> Source:
    from fusionloader.data.sources.plan_source import make_source  # loads torchvision

    return make_source(dataset, compiled, in_worker)


def _renewed_source_here(options: LoaderOptions) -> Source:
    dataset = options.dataset
    return _source_here(dataset, compile_dataset(dataset, options.decode, options.strict))
