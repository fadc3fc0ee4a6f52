"""Deferred images while the training process itself fetches a mini-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fusionloader.data.deferred import counts
from fusionloader.observe.statistics.loader_statistics import Statistics
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.system.native_part import missing

# Mini-batches in which images are looked for: the first ones, and then one in so many.
_LOOKED_AT = 4
_LOOKED_AT_EVERY = 100


def defers(options: LoaderOptions) -> bool:
    return options.deferred_images == "auto" and missing() is None


class Deferral:
    """Defers images in this thread while the training process fetches a mini-batch.

    Installing the patches costs as much as a small mini-batch. If the first mini-batches open no
    image, the patches are installed for one in a hundred only.
    """

    def __init__(self, options: LoaderOptions, statistics: Statistics) -> None:
        self._options, self._statistics = options, statistics
        self._fetches = 0  # since the last one that opened an image

    def fetching(self) -> contextlib.AbstractContextManager[None]:
        self._fetches += 1
        looks = self._fetches <= _LOOKED_AT or self._fetches % _LOOKED_AT_EVERY == 0
        if not looks or not defers(self._options):
            return contextlib.nullcontext()
        return self._deferring()

    @contextlib.contextmanager
    def _deferring(self) -> Iterator[None]:
        from fusionloader.data.deferred.scope import deferring

        try:
            with deferring():
                yield
        finally:
            counted = counts.take()
            if counted:
                self._fetches = 0
                self._statistics.workers.add_spent(0, 0.0, counted.take_spent())
                self._statistics.deferred.add(counted)
