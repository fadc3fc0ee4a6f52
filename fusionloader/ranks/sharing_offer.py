"""A loader as the global manager is to know it: who may work for whom."""

from __future__ import annotations

import hashlib
import os
import pickle
from typing import Any

import PIL
from PIL import Image, ImageFile

from fusionloader.plan.stages import Plan
from fusionloader.ranks.discovery import Ranks
from fusionloader.ranks.membership import SharingOffer, next_loader
from fusionloader.shm.dataset_table import DatasetTable


class SharingOffers:
    """A loader among those of its process and of the other ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._loader = next_loader()

    def of(self, plan: Plan, table: DatasetTable) -> SharingOffer:
        """Returns what others need in order to work for it, and by what they are told to fit.

        A worker gives back what it cannot do, so that only what changes pixels has to be equal.
        """
        kind = {
            "plan": _digest(plan),
            # Paths may be relative.
            "dataset": _digest((table.digest(), os.getcwd())),
            "Pillow": _digest(
                (PIL.__version__, ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS)
            ),
        }
        pickled_plan = pickle.dumps(plan)
        return SharingOffer(self._ranks, self._loader, kind, pickled_plan, table.fd, table.nbytes)


def _digest(value: Any) -> str:
    """By what it looks like: equal values pickle differently, by which parts they share."""
    return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()
