"""Images that a dataset keeps from one sample to later ones, as a cache of resized images does.

They get their pixels, as Pillow would have given them at once. Else the dataset would keep the
whole encoded file, and from the third view the whole decoded image, for each.
"""

from __future__ import annotations

import weakref
from typing import Any

from PIL import Image

from fusionloader.data.deferred import activity
from fusionloader.data.deferred.core import DeferredCore, make_own
from fusionloader.data.deferred.guard import comes_from_elsewhere
from fusionloader.data.deferred.unparsed import settle_attributes

_CLAIMS = 2  # the current one, and one whose images a variable may still hold


class KeptImages:
    """Gives pixels to images that are still there when their claim is done; for one worker."""

    def __init__(self) -> None:
        self._claims: list[list[weakref.ref[Any]]] = []

    def begin_claim(self) -> None:
        """Notes that the samples of earlier claims have been sent."""
        self._claims.append(activity.begin_claim())
        if len(self._claims) > _CLAIMS:
            for reference in self._claims.pop(0):
                image = reference()
                if isinstance(image, Image.Image):
                    _keep(image)


def _keep(image: Any) -> None:
    core = image.__dict__.get("_im")
    is_deferred = type(core) is DeferredCore
    if is_deferred and not core.operations:  # Pillow keeps more than the file
        return
    try:
        settle_attributes(image)  # they refer to the file, too
        if is_deferred:
            make_own(image)
    except Exception as error:  # it stays deferred, and raises where the dataset uses it
        if comes_from_elsewhere(error):
            raise
