"""A source of samples that user code makes with deferred images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from fusionloader.cache.tiers.store_handles import StoreHandles
from fusionloader.data.deferred import activity, counts, file_cache, patches
from fusionloader.data.deferred.file_cache import OpenStores
from fusionloader.data.deferred.kept import KeptImages
from fusionloader.data.deferred.scope import defer_in_worker
from fusionloader.data.deferred.tensors.deferred_tensor import finish_sample
from fusionloader.data.deferred.tensors.tensor_view import Uses
from fusionloader.transforms.executors.python import Dataset, Sample, SampleKey, Seeding, Source
from fusionloader.transforms.plan.parts import Spent

_OF_OTHERS = (OSError, MemoryError)  # errors that deferred tensors never cause


class DeferringSource:
    """Wraps a source so that the images its user code opens are deferred; for worker processes."""

    def __init__(self, source: Source, stores: StoreHandles, tensors: bool) -> None:
        """Wraps a source.

        Args:
            source: makes the samples.
            stores: caches of file contents.
            tensors: whether the tensors of decoders are deferred, too.
        """
        self.inner = source
        self.dataset: Dataset = source.dataset
        self.stores, self._opened = stores, OpenStores()
        self.tensors = tensors
        self._kept = KeptImages()
        self._begun = self._gave_up = False

    def __reduce__(self) -> tuple[type[DeferringSource], tuple[Source, StoreHandles, bool]]:
        return DeferringSource, (
            self.inner,
            self.stores,
            self.tensors,
        )  # each process calls begin() itself

    @property
    def seeding(self) -> Seeding:
        return self.inner.seeding

    @seeding.setter
    def seeding(self, seeding: Seeding) -> None:
        self.inner.seeding = seeding

    def load(self, key: SampleKey) -> Sample:
        self.begin()
        self.begin_sample()
        sample = self.inner.load(key)
        if self.tensors:
            finish_sample(sample)
        return sample

    def begin_sample(self) -> None:
        """Notes that user code makes a sample, or a list of samples, from here on."""
        Uses.begin_sample()

    def load_at_once(self, key: SampleKey, error: Exception) -> tuple[list[Sample], Exception]:
        """Makes a failed sample again; see ``make_at_once``."""
        return self.make_at_once(lambda: self.inner.load(key), error)

    def make_at_once(
        self, make: Callable[[], Sample], error: Exception
    ) -> tuple[list[Sample], Exception]:
        """Calls ``make`` without deferred tensors, if they may be why it has failed.

        User code may have asked for the exact type of a tensor, or may have given it to C++ code
        that reads its memory. Then this process defers tensors of this loader no more.

        Returns:
            A list of the result, or an empty one, and the error of user code.
        """
        is_ours = self.tensors and activity.defers_tensors() and Uses.are_in_sample()
        if not is_ours or isinstance(error, _OF_OTHERS):
            return [], error
        try:
            with activity.tensors_at_once():
                made = make()
        except Exception as again:
            return [], error if type(again) is type(error) else again
        self._gave_up = True
        self.begin()
        failed = counts.counts().failed
        failed.setdefault(counts.REPEATED, f"{type(error).__name__}: {error}")
        return [made], error

    def begin(self) -> None:
        """Defers the images that this process opens from now on, and uses this loader's stores."""
        if self._begun:
            if patches.seen_modules != len(sys.modules):
                patches.install_imported()
        else:
            patches.install(tensors=self.tensors)
            self._opened = OpenStores(self.stores)
            self._begun = True
        defer_in_worker(self.tensors and not self._gave_up)
        file_cache.use(self._opened)  # a pool's workers serve several loaders

    def begin_claim(self) -> None:
        """Does what ``begin`` does, before the samples of a claim; those of others are done."""
        self.begin()
        self._kept.begin_claim()

    def renewed(self) -> Source:
        return DeferringSource(self.inner.renewed(), self.stores, self.tensors)

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
    return DeferringSource(source.inner, stores.at({}), source.tensors), stores.descriptors()


def with_descriptors(source: Source, fds: Mapping[str, int]) -> Source:
    """Returns the source with descriptors that are open in this process."""
    if not isinstance(source, DeferringSource):
        return source
    return DeferringSource(source.inner, source.stores.at(fds), source.tensors)
