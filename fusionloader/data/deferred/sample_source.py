"""Samples of user code, made with deferred images."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from fusionloader.cache.tiers.store_handles import StoreHandles
from fusionloader.data.deferred import counts, kept, patches
from fusionloader.data.deferred.kept import OpenStores
from fusionloader.data.deferred.loading import begin_in_worker
from fusionloader.transforms.executors.python import Dataset, Sample, SampleKey, Seeding, Source
from fusionloader.transforms.plan.parts import Spent


class DeferringSource:
    """A source of user code's samples, whose images are deferred; for worker processes."""

    def __init__(self, source: Source, stores: StoreHandles) -> None:
        """``stores`` are where workers keep something of the files."""
        self.inner = source
        self.dataset: Dataset = source.dataset
        self.stores, self._opened = stores, OpenStores()
        self._begun = False

    def __reduce__(self) -> tuple[type[DeferringSource], tuple[Source, StoreHandles]]:
        return DeferringSource, (self.inner, self.stores)  # a process begins for itself

    @property
    def seeding(self) -> Seeding:
        """Which generators are seeded for every sample."""
        return self.inner.seeding

    @seeding.setter
    def seeding(self, seeding: Seeding) -> None:
        self.inner.seeding = seeding

    def load(self, key: SampleKey) -> Sample:
        """Returns one sample."""
        self.begin()
        return self.inner.load(key)

    def begin(self) -> None:
        """Defers the images that this process opens from now on, of this loader's samples."""
        if self._begun:
            patches.install_imported()
        else:
            begin_in_worker()
            self._opened = OpenStores(self.stores)
            self._begun = True
        kept.use(self._opened)  # a pool's workers serve several loaders

    def renewed(self) -> Source:
        """Returns the source of the dataset as it is now."""
        return DeferringSource(self.inner.renewed(), self.stores)

    def take_spent(self) -> Spent:
        """Returns the inner source's, and what was read and decoded for user code."""
        spent, own = self.inner.take_spent(), counts.counts().take_spent()
        pairs = zip_longest(spent.part_seconds, own.part_seconds, fillvalue=0.0)
        return Spent(
            [sum(pair) for pair in pairs],
            spent.read_bytes + own.read_bytes,
            [a + b for a, b in zip(spent.cache, own.cache, strict=True)],
        )

    def name(self, key: SampleKey) -> str:
        """Returns the inner source's."""
        return self.inner.name(key)

    def count(self) -> int:
        """Returns the inner source's."""
        return self.inner.count()


def without_deferral(source: Source) -> Source:
    """Returns a source of the same samples that makes all images at once."""
    return source.inner if isinstance(source, DeferringSource) else source


def without_descriptors(source: Source) -> tuple[Source, dict[str, int]]:
    """Returns a source to pickle for a process that gets its descriptors apart, and these."""
    if not isinstance(source, DeferringSource):
        return source, {}
    stores = source.stores
    return DeferringSource(source.inner, stores.at({})), stores.descriptors()


def with_descriptors(source: Source, fds: Mapping[str, int]) -> Source:
    """Returns the source in that process."""
    if not isinstance(source, DeferringSource):
        return source
    return DeferringSource(source.inner, source.stores.at(fds))
