"""Where the native part or POSIX shared memory is missing: torch's own workers serve."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Sequence
from typing import Any

from fusionloader.iterators.whole_batches import SingleProcessIterator, WholeBatchIterator
from fusionloader.resume.epochs import Epochs

log = logging.getLogger("fusionloader.loader")

_NEEDED = ("posix_ipc", "fusionloader._native")
_said = False


def missing() -> str | None:
    """Returns what a FusionLoader needs and this machine has not, ``None`` if it has everything."""
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{name} ({error})"
    return None


class PortableIteratorFactory:
    """Stands for ``IteratorFactory`` where nothing can be compiled."""

    def __init__(self, why: str) -> None:
        self._why = why

    def iterator(self, loader: Any, epochs: Epochs) -> Any:
        """Returns an iterator of torch's that knows states and epochs; says once that it does."""
        global _said
        if not _said:
            _said = True
            warnings.warn(
                f"FusionLoader runs as torch's DataLoader here, at its speed: {self._why} is "
                "missing. Its own workers need Linux.",
                stacklevel=6,
            )
        if loader.on_error != "raise":
            raise NotImplementedError(
                f"on_error = {loader.on_error!r} needs FusionLoader's own workers: {self._why} is "
                "missing"
            )
        kind = WholeBatchIterator if loader.num_workers > 0 else SingleProcessIterator
        return kind(loader, epochs)

    def explain(self, loader: Any, part_seconds: Sequence[float] = ()) -> str:
        """Returns why nothing is compiled."""
        return f"whole batches per worker, as torch's DataLoader: {self._why} is missing"

    def kept_stats(self) -> dict[str, Any]:
        """Returns nothing: there are no caches."""
        return {}
