"""Chooses how a loader's samples are made: in which process, and by a plan or by user code."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Subset
from torch.utils.data import _utils as torch_utils
from torch.utils.data.dataloader import _DatasetKind

from fusionloader.executors.collate import is_of_collate
from fusionloader.executors.python import DatasetSource, Seeding, Source
from fusionloader.gpu import choice as gpu_choice
from fusionloader.iterators.backend import WorkerBackend, refuse_pool
from fusionloader.iterators.explanation import explained
from fusionloader.iterators.native_backend import NativeBackend
from fusionloader.iterators.python_backend import PythonBackend
from fusionloader.ranks.discovery import ranks_here
from fusionloader.ranks.sharing_offer import SharingOffers
from fusionloader.resume.epochs import Epochs
from fusionloader.resume.stateful import has_state
from fusionloader.sources.datasets import Compiled, compile_dataset
from fusionloader.sources.fingerprint import Fingerprint
from fusionloader.sources.kept_files import KeptFiles
from fusionloader.sources.plan_source import PlanSource
from fusionloader.sources.tables import Tables

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

    def __reduce__(self) -> tuple[Any, ...]:
        return IteratorFactory, ()  # a copied or pickled loader finds out for itself

    def iterator(self, loader: Any, epochs: Epochs) -> Any:
        """Returns a new iterator over ``loader``."""
        from fusionloader.iterators.in_process import InProcessIterator
        from fusionloader.iterators.slots import SlotIterator
        from fusionloader.iterators.whole_batches import SingleProcessIterator, WholeBatchIterator

        compiled, why_not = self._compiled(loader)
        self._log(explained(loader, compiled, why_not))
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
            refuse_pool(loader, why_not)
            return WholeBatchIterator(loader, epochs)
        if compiled is None:
            backend: WorkerBackend = PythonBackend(DatasetSource(loader.dataset), remember)
        else:
            python = PythonBackend(PlanSource(loader.dataset, compiled), remember)
            of_init = Fingerprint(loader.dataset, [loader.worker_init_fn])
            table = None
            if of_init != self._changed_by_init:
                table = self._tables.of(loader.dataset, compiled)
            if table is None:
                backend = python
            else:
                outdated = functools.partial(self._remember_change, of_init, python)
                choice = gpu_choice.choose(loader, compiled)
                kept = self._kept.of(loader, table, compiled.kind == "folder")
                offers = self._offers(loader)
                backend = NativeBackend(
                    loader.dataset, compiled, table, choice, kept, outdated, offers
                )
        return SlotIterator(loader, epochs, backend)

    def _offers(self, loader: Any) -> SharingOffers | None:
        if loader.global_manager == "off" or (ranks := ranks_here()) is None:
            return None
        if self._made_offers is None:
            self._made_offers = SharingOffers(ranks)
        return self._made_offers

    def explain(self, loader: Any, part_seconds: Sequence[float] = ()) -> str:
        """Returns how the loader's samples are made, and why, a line per stage.

        With ``part_seconds``, the time spent on each part, also its share.
        """
        return explained(loader, *self._compiled(loader), part_seconds)

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


def _samples_of(loader: Any) -> Fingerprint:
    """Returns what decides on the layout of samples: the dataset, and how they are collated."""
    return Fingerprint(loader.dataset, torch_utils.collate.default_collate_fn_map)


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
