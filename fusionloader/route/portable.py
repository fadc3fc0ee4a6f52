"""Where the native part or POSIX shared memory is missing: torch's own workers serve."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusionloader.cache.store_stats import StoreStats
from fusionloader.engine.iterators.whole_batches import SingleProcessIterator, WholeBatchIterator
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
    """Stands for ``IteratorFactory`` where nothing can be compiled."""

    def __init__(self, why: str) -> None:
        self._why = why

    def iterator(
        self, loader: AnyLoader, options: LoaderOptions, state: LoaderParts
    ) -> WholeBatchIterator | SingleProcessIterator:
        """Returns an iterator of torch's that knows states and epochs; says once that it does."""
        global _said
        if not _said:
            _said = True
            warn_user(
                f"FusionLoader runs as torch's DataLoader here, at its speed: {self._why} is "
                "missing. Its own workers need Linux.",
            )
        if options.on_error != "raise":
            raise NotImplementedError(
                f"on_error = {options.on_error!r} needs FusionLoader's own workers: {self._why} is "
                "missing"
            )
        if options.share is not None:
            raise NotImplementedError(
                f"share = {options.share!r} needs FusionLoader's own workers: {self._why} is "
                "missing"
            )
        if options.num_workers > 0:
            return WholeBatchIterator(loader, options, state)
        return SingleProcessIterator(loader, options, state)

    def explain(self, options: LoaderOptions, part_seconds: Sequence[float] = ()) -> str:
        """Returns why nothing is compiled."""
        return f"whole batches per worker, as torch's DataLoader: {self._why} is missing"

    def way(self, options: LoaderOptions) -> str:
        """Returns how the loader's samples are made, in two words."""
        return "torch's loops"

    def kept_stats(self) -> dict[str, StoreStats]:
        """Returns nothing: there are no caches."""
        return {}


def iterator_factory() -> IteratorFactory | PortableIteratorFactory:
    """Returns what chooses a loader's iterators on this machine."""
    why = missing()
    if why is not None:
        return PortableIteratorFactory(why)
    from fusionloader.route.factory import IteratorFactory

    return IteratorFactory()
