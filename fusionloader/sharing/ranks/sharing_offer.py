"""What a rank offers of a loader: what other ranks' workers need in order to serve its queue."""

from __future__ import annotations

import itertools
import os
import pickle
from dataclasses import dataclass

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.sharing.compatibility import digest_repr, pillow_settings
from fusionloader.sharing.ranks.discovery import JobRanks
from fusionloader.transforms.plan.stages import Plan

# Loaders of this process; ranks that run the same script count alike.
_loaders = itertools.count()


@dataclass(frozen=True, slots=True)
class SharingOffer:
    """What workers of other ranks need to serve a loader, and which workers may.

    Attributes:
        ranks: the rank that offers.
        loader: number of the loader in its process, the same in every rank of a script.
        kind: digests, by name, that have to be equal for workers to be shared.
        pickled_plan: the pickled plan.
        table_fd: descriptor of the dataset's table.
        table_bytes: its size.
    """

    ranks: JobRanks
    loader: int
    kind: dict[str, str]
    pickled_plan: bytes
    table_fd: int
    table_bytes: int


class SharingOffers:
    """Makes the offers of one loader, whose number it takes when it is created."""

    def __init__(self, ranks: JobRanks) -> None:
        self._ranks = ranks
        self._loader = next(_loaders)

    def make(self, plan: Plan, table: DatasetTable) -> SharingOffer:
        """Returns the offer for a plan and a dataset.

        A worker gives back what it cannot do, so only what changes pixels has to be equal.
        """
        kind = {
            "plan": _digest(plan),
            # Paths may be relative.
            "dataset": _digest((table.digest(), os.getcwd())),
            "Pillow": _digest(pillow_settings()),
            # A process of another namespace cannot be checked for being alive.
            "PID namespace": _digest([_namespace("pid"), _namespace("time")]),
        }
        pickled_plan = pickle.dumps(plan)
        return SharingOffer(self._ranks, self._loader, kind, pickled_plan, table.fd, table.nbytes)


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # time namespaces exist since Linux 5.6
        return ""


def _digest(value: object) -> str:
    return digest_repr(value, nbytes=16)
