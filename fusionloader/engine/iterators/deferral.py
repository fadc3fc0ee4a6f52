"""Deferred images while the training process itself fetches a mini-batch."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

from fusionloader.data.deferred import counts
from fusionloader.observe.statistics.loader_statistics import Statistics
from fusionloader.options.aliases import AnyDataset
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.system.native_part import missing

# Mini-batches in which images are looked for: the first ones, and then one in so many.
_LOOKED_AT = 4
_LOOKED_AT_EVERY = 100


def defers(options: LoaderOptions) -> bool:
    return options.deferred_images != "off" and missing() is None


class _Fetches:
    """Number of mini-batches that were fetched since the last one that opened an image."""

    def __init__(self) -> None:
        self.count = 0


# By the id of a dataset, whose loader may be made anew for each epoch.
_fetches: dict[int, tuple[weakref.ref[AnyDataset], _Fetches]] = {}


def _fetches_of(dataset: AnyDataset) -> _Fetches:
    key, found = id(dataset), _Fetches()
    reference, known = _fetches.get(key, (None, found))
    if reference is not None and reference() is dataset:
        return known
    with contextlib.suppress(TypeError):  # a list, for example, has no weak references
        _fetches[key] = weakref.ref(dataset, lambda _: _fetches.pop(key, None)), found
    return found


class Deferral:
    """Defers images in this thread while the training process fetches a mini-batch.

    Installing the patches costs as much as a small mini-batch. If the first mini-batches open no
    image, the patches are installed for one in a hundred only, also in later loaders of the
    dataset.
    """

    def __init__(self, options: LoaderOptions, statistics: Statistics) -> None:
        self._options, self._statistics = options, statistics
        self._fetches = _fetches_of(options.dataset)

    def fetching(self) -> contextlib.AbstractContextManager[None]:
        if not defers(self._options):
            return contextlib.nullcontext()
        self._fetches.count += 1
        count = self._fetches.count
        if count > _LOOKED_AT and count % _LOOKED_AT_EVERY:
            return contextlib.nullcontext()
        return self._deferring()

    @contextlib.contextmanager
    def _deferring(self) -> Iterator[None]:
        from fusionloader.data.deferred.scope import deferring

        try:
            with deferring(self._options.deferred_images == "tensors"):
                yield
        finally:
            counted = counts.take()
            if counted:
                self._fetches.count = 0
                self._statistics.workers.add_spent(0, 0.0, counted.take_spent())
                self._statistics.deferred.add(counted)
