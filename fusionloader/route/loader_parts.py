"""What a loader keeps from iterator to iterator beside its epochs: members, links, readers."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

from fusionloader.cache.store_stats import StoreStats
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.observe.statistics.remote_stats import RemoteStats
from fusionloader.observe.statistics.snapshot import LoaderStats

if TYPE_CHECKING:  # iterators work where the native part is missing
    from fusionloader.cache.tiers.dataset_table import DatasetTable
    from fusionloader.data.read_ahead.read_ahead_process import ReadAheadProcess
    from fusionloader.data.sources.streams.settings import ReadSettings
    from fusionloader.options.remote_settings import Remote
    from fusionloader.sharing.jobs.membership import GroupMembership
    from fusionloader.sharing.remote.remote_workers import RemoteWorkers


class KeepsFiles(Protocol):
    """An iterator factory, as far as statistics ask it."""

    def kept_stats(self) -> dict[str, StoreStats]:
        """Returns what is kept of the dataset's files."""


class LoaderParts(LoaderState):
    """The state of a loader, with what takes part in its work over several iterators."""

    def __init__(self) -> None:
        super().__init__()
        self._membership: GroupMembership | None = None
        self._link: RemoteWorkers | None = None
        self._settings: Remote | None = None
        self._reader: ReadAheadProcess | None = None
        self._read_table: DatasetTable | None = None

    def stats(self, factory: KeepsFiles) -> LoaderStats:
        """Returns a snapshot of the counters; ``factory`` made the iterators."""
        shared = None if self._membership is None else self._membership.stats()
        kept = factory.kept_stats()
        stream = None if self._reader is None else self._reader.stats()
        return self.statistics.snapshot(
            self.epochs.completed, kept, shared, self._remote_stats(), stream
        )

    def _remote_stats(self) -> RemoteStats | None:
        if self._link is None or self._settings is None:
            return None
        from fusionloader.observe.statistics.remote_stats import remote_stats

        here = self.statistics.all_workers.total().made
        return remote_stats(self._link.counters, self._settings.offload, here)

    def explain(self) -> list[str]:
        """Returns what was counted of deferred images, shared preparation, other machines, URLs."""
        counted = self.statistics.deferred
        lines = list(counted.explain()) if counted else []
        if self._membership is not None:
            lines.append(self._membership.stats().explain())
        if self._link is not None and (remote := self._remote_stats()) is not None:
            lines += [*self._link.explain(), remote.explain()]
        if self._reader is not None:
            lines.append(self._reader.stats().explain())
        if self.refused is not None:
            lines.append(self.refused)
        return lines

    def leave(self) -> None:
        """Ends the loader's membership of a group, and remote workers; an epoch begins others."""
        if self._membership is not None:
            self._membership.close()
        if self._link is not None:
            self._link.close()

    def link(self, settings: Remote, num_workers: int) -> RemoteWorkers:
        """Returns the loader's remote workers.

        Raises:
            ValueError: an address or the token file is not one.
            ImportError: a package is not installed.
            ConnectionError: there is no such cluster.
        """
        from fusionloader.sharing.remote.remote_workers import RemoteWorkers

        if self._link is None:
            self._link = RemoteWorkers(settings, self.statistics.waits, num_workers)
            self._settings = settings
            self.statistics.observers.append(self._link)
        return self._link

    def reader(self, table: DatasetTable, settings: ReadSettings) -> ReadAheadProcess:
        """Returns the process that reads a table's URLs ahead, the same one for all epochs."""
        from fusionloader.data.read_ahead.read_ahead_process import ReadAheadProcess

        if self._reader is None or self._read_table is not table:
            if self._reader is not None:
                self._reader.close()
            self._reader, self._read_table = ReadAheadProcess(table, settings), table
            weakref.finalize(self, self._reader.close)
        return self._reader

    def member(self, word: str) -> GroupMembership:
        """Returns the loader's membership of the group of a word."""
        from fusionloader.sharing.jobs.membership import GroupMembership

        if self._membership is None or not self._membership.is_for(word):
            self._membership = GroupMembership(word)
        return self._membership
