"""The loaders whose counters are exported, for as long as they exist.

Exporters read in their own threads. They hold the sources of a snapshot, and never the loader: a
thread with the last reference to it would end its workers in the middle of an export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fusionloader.loader import FusionLoader
from fusionloader.observe.statistics.snapshot import LoaderStats
from fusionloader.system.finalizers import Finalizer

Loaders = FusionLoader[Any] | Mapping[str, FusionLoader[Any]]
"""One loader, which is called ``"train"``, or several by name."""


class ExportedLoaders:
    """Snapshots of loaders by name, without loaders that are gone."""

    def __init__(self, loaders: Loaders) -> None:
        """Adds ``loaders``, as ``add`` does."""
        self._readers: dict[str, Callable[[], LoaderStats]] = {}
        self.add(loaders)

    def add(self, loaders: Loaders) -> None:
        """Adds loaders; they replace those of the same names.

        Raises:
            TypeError: one of them is not a FusionLoader.
            ValueError: there are none.
        """
        named = loaders if isinstance(loaders, Mapping) else {"train": loaders}
        if not named:
            raise ValueError('no loaders to export: pass one, or several as {"train": loader}')
        for name, loader in named.items():
            if not isinstance(loader, FusionLoader):
                raise TypeError(f"{name!r} should be a FusionLoader, not {loader!r}")
        for name, loader in named.items():
            reader = self._readers[name] = loader._stats_reader()
            Finalizer(loader, self._remove, name, reader)

    def _remove(self, name: str, reader: Callable[[], LoaderStats]) -> None:
        if self._readers.get(name) is reader:
            del self._readers[name]

    def read(self) -> Iterator[tuple[dict[str, str], LoaderStats]]:
        """Yields the labels (name and rank) and the snapshot of each loader."""
        for name, reader in tuple(self._readers.items()):
            stats = reader()
            yield {"loader": name, "rank": str(stats.rank)}, stats
