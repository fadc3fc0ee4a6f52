"""NVTX: ``annotate`` shows the waits of training as ranges in Nsight Systems."""

from __future__ import annotations

from typing import Any

from fusionloader.addons.integrations.extras import extra
from fusionloader.loader import FusionLoader

__all__ = ["Annotation", "annotate"]

with extra("nvtx"):
    import nvtx

_DOMAIN = "fusionloader"


def annotate(loader: FusionLoader[Any], name: str = "train") -> Annotation:
    """Puts a range of the domain ``fusionloader`` around each ``next()`` of a loader's iterators.

    Without a profiler the ranges do nothing. They need no GPU.

    Args:
        loader: the loader whose waits are shown.
        name: name of the loader in the ranges: ``"train: next()"``.

    Returns:
        An annotation. ``close()``, called between two batches, or a ``with`` block ends it.
    """
    return Annotation(loader, name)


class Annotation:
    """Ranges around the waits of training, until it is closed. It is a context manager."""

    def __init__(self, loader: FusionLoader[Any], name: str) -> None:
        """Use ``annotate``."""
        self._domain = nvtx.get_domain(_DOMAIN)
        self._event = self._domain.get_event_attributes(message=f"{name}: next()")
        self._observers = loader._state.statistics.observers
        self._observers.append(self)

    def asked(self) -> None:
        """Begins a range."""
        self._domain.push_range(self._event)

    def delivered(self) -> None:
        """Ends the range."""
        self._domain.pop_range()

    def close(self) -> None:
        """Ends the annotation."""
        if self in self._observers:
            self._observers.remove(self)

    def __enter__(self) -> Annotation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
