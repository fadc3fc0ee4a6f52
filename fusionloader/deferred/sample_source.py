"""Samples of user code, made with deferred images."""

from __future__ import annotations

from fusionloader.deferred import patches
from fusionloader.deferred.loading import begin_in_worker
from fusionloader.executors.python import Dataset, Sample, SampleKey, Seeding, Source


class DeferringSource:
    """A source of user code's samples, whose images are deferred; for worker processes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.dataset: Dataset = source.dataset
        self._begun = False

    def __reduce__(self) -> tuple[type[DeferringSource], tuple[Source]]:
        return DeferringSource, (self._source,)  # a process begins for itself

    @property
    def seeding(self) -> Seeding:
        """Which generators are seeded for every sample."""
        return self._source.seeding

    @seeding.setter
    def seeding(self, seeding: Seeding) -> None:
        self._source.seeding = seeding

    def load(self, key: SampleKey) -> Sample:
        """Returns one sample."""
        if self._begun:
            patches.install_imported()
        else:
            begin_in_worker()
            self._begun = True
        return self._source.load(key)

    def renewed(self) -> Source:
        """Returns the source of the dataset as it is now."""
        return DeferringSource(self._source.renewed())

    def take_part_seconds(self) -> list[float]:
        """Returns the inner source's."""
        return self._source.take_part_seconds()

    def name(self, key: SampleKey) -> str:
        """Returns the inner source's."""
        return self._source.name(key)

    def count(self) -> int:
        """Returns the inner source's."""
        return self._source.count()
