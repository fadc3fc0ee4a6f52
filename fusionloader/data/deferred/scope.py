"""How long images are deferred: always in a worker, in the training process while it fetches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fusionloader.data.deferred import activity, patches
from fusionloader.system.training_signals import raised_by_handler


def defer_in_worker(tensors: bool = False) -> None:
    """Defers the images that this process opens from now on, if the patches fit its Pillow."""
    if patches.fit_pillow():
        activity.defer_everywhere(tensors)


@contextlib.contextmanager
def deferring(tensors: bool = False) -> Iterator[None]:
    """Defers images that this thread opens; at the end they get pixels, and Pillow is restored.

    ``tensors`` is whether the tensors of decoders are deferred, too.
    """
    images: list[Any] = []
    with patches.installed(tensors):
        if not patches.fit_pillow():
            yield
            return
        try:
            with activity.active(tensors) as images:
                yield
        finally:
            _settle(images)


def _settle(images: list[Any]) -> None:
    if not images:
        return
    from PIL._util import DeferredError

    from fusionloader.data.deferred.core import settle
    from fusionloader.data.deferred.enhancing import ENHANCERS, settle_enhancer
    from fusionloader.data.deferred.tensors.deferred_tensor import is_deferred, make_plain
    from fusionloader.data.deferred.unparsed import settle_attributes

    for reference in images:
        found = reference()
        try:
            if isinstance(found, ENHANCERS):
                settle_enhancer(found)
            elif is_deferred(found):
                make_plain(found, "the end of the fetch")
            elif found is not None:
                settle_attributes(found)
                settle(found, "the end of the fetch")
        except Exception as error:  # Pillow raises it on first access to the pixels
            if raised_by_handler(error):
                raise
            found._im = DeferredError(error)
    images.clear()
