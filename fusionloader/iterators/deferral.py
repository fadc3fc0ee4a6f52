"""Deferred images where torch's own loop fetches, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fusionloader.deferred import counts
from fusionloader.iterators.native_part import missing
from fusionloader.options import LoaderOptions
from fusionloader.statistics.counters import Statistics


def defers(options: LoaderOptions) -> bool:
    """Whether images are deferred."""
    return options.deferred_images == "auto" and missing() is None


@contextlib.contextmanager
def while_fetching(options: LoaderOptions, statistics: Statistics) -> Iterator[None]:
    """Defers images in this thread, if the loader's options say so."""
    if not defers(options):
        yield
        return
    from fusionloader.deferred.loading import deferring

    try:
        with deferring():
            yield
    finally:
        counted = counts.take()
        statistics.workers.add_spent(0, 0.0, counted.take_spent())
        statistics.deferred.add(counted)
