"""The state that a loader keeps between iterators: epochs, membership, remote workers, reader."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fusionloader.cache.store_stats import StoreStats
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.observe.statistics.remote_stats import RemoteStats
from fusionloader.observe.statistics.shared_prep import SharedPrepStats
from fusionloader.observe.statistics.snapshot import LoaderStats
from fusionloader.sharing.ranks.discovery import ranks_here
from fusionloader.system.finalizers import ExitFinalizer

if TYPE_CHECKING:  # not imported at run time, since the native part may be missing
    from fusionloader.cache.tiers.dataset_table import DatasetTable
    from fusionloader.data.read_ahead.read_ahead_process import ReadAheadProcess
    from fusionloader.data.sources.streams.settings import ReadSettings
    from fusionloader.options.loader_options import LoaderOptions
    from fusionloader.options.remote_settings import Remote
    from fusionloader.sharing.jobs.membership import GroupMembership
    from fusionloader.sharing.remote.remote_workers import RemoteWorkers


log = logging.getLogger("fusionloader.loader")


class LoaderParts(LoaderState):
    """The state of a loader, with the participants that outlive an iterator."""

    def __init__(self) -> None:
        super().__init__()
        self._membership: GroupMembership | None = None
        self._link: RemoteWorkers | None = None
        self._settings: Remote | None = None
        self._why_not_linked = ""
        self._reader: ReadAheadProcess | None = None
        self._read_table: DatasetTable | None = None

    def stats(self, cache_stats: Callable[[], dict[str, StoreStats]]) -> LoaderStats:
        """Returns a snapshot of the counters, with those of caches by store."""
        shared = self._shared_prep()
        caches = cache_stats()
        stream = None if self._reader is None else self._reader.stats()
        return self.statistics.snapshot(
            self.epochs.completed, caches, shared, self._remote_stats(), stream
        )

    def _shared_prep(self) -> SharedPrepStats | None:
        if self._membership is None:
            return None
        return self._membership.stats(self.statistics.all_workers.total().made)

    def _remote_stats(self) -> RemoteStats | None:
        if self._link is None or self._settings is None:
            return None
        from fusionloader.observe.statistics.remote_stats import remote_stats

        here = self.statistics.all_workers.total().made
        offload, fleet = self._settings.offload, self._link.state()
        return remote_stats(self._link.counters, offload, here, *fleet)

    def explain(self) -> list[str]:
        """Returns lines on deferred images, shared preparation, remote workers and URLs."""
        counted = self.statistics.images()
        lines = list(counted.explain()) if counted else []
        if (shared := self._shared_prep()) is not None:
            lines.append(shared.explain())
        if self._link is not None and (remote := self._remote_stats()) is not None:
            lines += [*self._link.explain(), remote.explain()]
        if self._why_not_linked:
            lines.append(f"no remote workers: {self._why_not_linked}")
        if self._reader is not None:
            lines.append(self._reader.stats().explain())
        if self.refused is not None:
            lines.append(self.refused)
        return lines

    def leave(self) -> None:
        """Ends the membership of a group, and remote workers; the next epoch starts new ones."""
        if self._membership is not None:
            self._membership.close()
        self._why_not_linked = ""  # it is tried again
        if self._link is not None:
            self._link.close()

    def link(self, options: LoaderOptions) -> RemoteWorkers | None:
        """Returns the loader's remote workers; ``None`` if Ray has none and is not insisted on.

        Raises:
            ValueError: an address or the token file is invalid.
            ImportError: a package is not installed.
            ConnectionError: the Ray cluster at the given address does not answer.
        """
        from fusionloader.sharing.remote.remote_workers import RemoteWorkers

        if self._why_not_linked:
            return None
        settings, workers = options.remote, self.statistics.all_workers
        assert settings is not None
        try:
            if self._link is None:
                self._link = RemoteWorkers(
                    settings,
                    self.statistics.waits,
                    options.num_workers,
                    lambda: workers.total().made,
                    None if options.global_manager == "off" else ranks_here(),
                )
                self._settings = settings
                self.statistics.observers.append(self._link)
            _ = self._link.fleet  # found or started again after `leave`
        except ConnectionError as error:
            if settings.servers is not None or settings.cluster_address is not None:
                raise
            self._why_not_linked = str(error)
            log.warning("training goes on without remote workers: %s", error)
            return None
        return self._link

    def reader(self, table: DatasetTable, settings: ReadSettings) -> ReadAheadProcess:
        """Returns the process that reads the URLs of a table ahead, the same for all epochs."""
        from fusionloader.data.read_ahead.read_ahead_process import ReadAheadProcess

        reader = self._reader
        if reader is None or not reader.is_own or self._read_table is not table:
            if reader is not None:
                reader.close()
            reader = ReadAheadProcess(table, settings)
            self._reader, self._read_table = reader, table
            ExitFinalizer(self, reader.close)
        return reader

    def member(self, group: str) -> GroupMembership:
        """Returns the loader's membership of the group of jobs with this ``share`` name."""
        from fusionloader.sharing.jobs.membership import GroupMembership

        if self._membership is None or not self._membership.is_for(group):
            self._membership = GroupMembership(group)
        return self._membership
