"""A source of samples that user code makes with deferred images."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from fusionloader.cache.tiers.store_handles import StoreHandles
from fusionloader.data.deferred import counts, file_cache, patches
from fusionloader.data.deferred.file_cache import OpenStores
from fusionloader.data.deferred.scope import begin_in_worker
from fusionloader.data.deferred.tensors.deferred_tensor import (
    decode_at_once,
    decoding_at_once,
    finish_sample,
    is_deferring,
)
from fusionloader.transforms.executors.python import Dataset, Sample, SampleKey, Seeding, Source
from fusionloader.transforms.plan.parts import Spent


class DeferringSource:
    """Wraps a source so that the images its user code opens are deferred; for worker processes."""

    def __init__(self, source: Source, stores: StoreHandles) -> None:
        """``stores`` are the caches of file contents."""
        self.inner = source
        self.dataset: Dataset = source.dataset
        self.stores, self._opened = stores, OpenStores()
        self._begun = False

    def __reduce__(self) -> tuple[type[DeferringSource], tuple[Source, StoreHandles]]:
        return DeferringSource, (self.inner, self.stores)  # each process calls begin() itself

    @property
    def seeding(self) -> Seeding:
        return self.inner.seeding

    @seeding.setter
    def seeding(self, seeding: Seeding) -> None:
        self.inner.seeding = seeding

    def load(self, key: SampleKey) -> Sample:
        self.begin()
        sample = self.inner.load(key)
        finish_sample(sample)
        return sample

    def load_at_once(self, key: SampleKey, error: Exception) -> list[Sample]:
        """Returns a failed sample that can be made without deferred tensors; else nothing.

        User code may have asked for the exact type of a tensor, or may have given it to C++ code
        that reads its memory. Then this process defers tensors no more.
        """
        if not is_deferring():
            return []
        try:
            with decoding_at_once():
                sample = self.inner.load(key)
        except Exception:
            return []
        decode_at_once()
        failed = counts.counts().failed
        failed.setdefault("an image decoder", f"{type(error).__name__}: {error}")
        return [sample]

    def begin(self) -> None:
        """Defers the images that this process opens from now on, and uses this loader's stores."""
        if self._begun:
            if patches.seen_modules != len(sys.modules):
                patches.install_imported()
        else:
            begin_in_worker()
            self._opened = OpenStores(self.stores)
            self._begun = True
        file_cache.use(self._opened)  # a pool's workers serve several loaders

    def renewed(self) -> Source:
        return DeferringSource(self.inner.renewed(), self.stores)

    def take_spent(self) -> Spent:
        """Returns the sum of the inner source's costs and those of deferred images."""
        return self.inner.take_spent() + counts.counts().take_spent()

    def name(self, key: SampleKey) -> str:
        return self.inner.name(key)

    def count(self) -> int:
        return self.inner.count()


def without_deferral(source: Source) -> Source:
    """Returns a source of the same samples without deferred images."""
    return source.inner if isinstance(source, DeferringSource) else source


def without_descriptors(source: Source) -> tuple[Source, dict[str, int]]:
    """Returns a source that can be pickled, and the descriptors to send beside it."""
    if not isinstance(source, DeferringSource):
        return source, {}
    stores = source.stores
    return DeferringSource(source.inner, stores.at({})), stores.descriptors()


def with_descriptors(source: Source, fds: Mapping[str, int]) -> Source:
    """Returns the source with descriptors that are open in this process."""
    if not isinstance(source, DeferringSource):
        return source
    return DeferringSource(source.inner, source.stores.at(fds))
