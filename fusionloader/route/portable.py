"""Serves loaders by torch's own workers where the native part or shared memory is missing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusionloader.cache.store_stats import StoreStats
from fusionloader.engine.iterators.single_process import SingleProcessIterator
from fusionloader.engine.iterators.torchs_workers import WholeBatchIterator
from fusionloader.options.aliases import AnyLoader
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.route.loader_parts import LoaderParts
from fusionloader.system.native_part import missing
from fusionloader.system.user_warnings import warn_user

if TYPE_CHECKING:
    from fusionloader.route.factory import IteratorFactory

log = logging.getLogger("fusionloader.loader")

_said = False


class PortableIteratorFactory:
    """Replaces ``IteratorFactory`` where nothing can be compiled."""

    def __init__(self, why: str) -> None:
        self._why = why

    def iterator(
        self, loader: AnyLoader, options: LoaderOptions, state: LoaderParts
    ) -> WholeBatchIterator | SingleProcessIterator:
        """Returns torch's iterator, extended by states and epochs; warns once in a process."""
        global _said
        if not _said:
            _said = True
            warn_user(
                f"FusionLoader runs as torch's DataLoader here, at its speed: {self._why} is "
                "missing. Its own workers need Linux."
            )
        for name, usual in (("on_error", "raise"), ("share", None)):
            given = getattr(options, name)
            if given != usual:
                raise NotImplementedError(
                    f"{name} = {given!r} needs FusionLoader's own workers: {self._why} is missing"
                )
        if options.num_workers > 0:
            return WholeBatchIterator(loader, options, state)
        return SingleProcessIterator(loader, options, state)

    def explain(self, options: LoaderOptions, part_seconds: Sequence[float] = ()) -> str:
        return f"whole batches per worker, as torch's DataLoader: {self._why} is missing"

    def way(self, options: LoaderOptions) -> str:
        return "torch's loops"

    def cache_stats(self) -> dict[str, StoreStats]:
        return {}


def iterator_factory() -> IteratorFactory | PortableIteratorFactory:
    """Returns the factory of a loader's iterators on this machine."""
    why = missing()
    if why is not None:
        return PortableIteratorFactory(why)
    from fusionloader.route.factory import IteratorFactory

    return IteratorFactory()
