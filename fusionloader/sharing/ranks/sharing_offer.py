"""What a rank offers of a loader: what other ranks' workers need in order to serve its queue."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import pickle
from dataclasses import dataclass

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.sharing.compatibility import (
    CodeTooLong,
    digest_code,
    digest_repr,
    pillow_settings,
)
from fusionloader.sharing.ranks.discovery import JobRanks
from fusionloader.transforms.plan.stages import Plan

log = logging.getLogger("fusionloader.ranks")

_DIGEST_BYTES = 16
_MOST_MIB = 128  # of a pickled dataset; the digest of 1.3 million paths takes 0.8 s for 73 MiB

# Loaders of this process; ranks that run the same script count alike.
_loaders = itertools.count()


@dataclass(frozen=True, slots=True)
class SharingOffer:
    """What workers of other ranks need to serve a loader, and which workers may.

    Attributes:
        kind: digests, by name, that have to be equal for workers to be shared.
        pickled_plan: the pickled plan; empty if workers run user code.
        table_fd: descriptor of the dataset's table, -1 if workers run user code.
        table_bytes: its size.
    """

    kind: dict[str, str]
    pickled_plan: bytes = b""
    table_fd: int = -1
    table_bytes: int = 0


class SharingOffers:
    """Makes the offers of one loader, whose number it takes when it is created.

    Attributes:
        ranks: the rank that offers.
        loader: number of the loader in its process, the same in every rank of a script.
        why_not: why user code cannot be offered, from then on; empty if it can.
    """

    def __init__(self, ranks: JobRanks) -> None:
        self.ranks = ranks
        self.loader = next(_loaders)
        self.why_not = ""
        self._has_compared = False

    def make(self, plan: Plan, table: DatasetTable) -> SharingOffer:
        """Returns the offer for a plan and a dataset.

        A worker gives back what it cannot do, so only what changes pixels has to be equal.
        """
        # Paths may be relative.
        digests = {"plan": _digest(plan), "dataset": _digest((table.digest(), os.getcwd()))}
        kind = {**digests, **_settings()}
        return SharingOffer(kind, pickle.dumps(plan), table.fd, table.nbytes)

    def make_for_code(self, **code: object) -> SharingOffer | None:
        """Returns the offer for user code, given as what has to be equal, by name.

        To be called before workers get the dataset: training may change it afterwards. Returns
        ``None`` if it cannot be compared with that of other ranks, from then on.
        """
        if self.why_not:
            return None
        compared = functools.partial(
            digest_code,
            os.getcwd(),
            most_bytes=_MOST_MIB << 20,
            # torch moves tensors to shared memory when it spawns workers
            own_memory=("numpy",) if self._has_compared else ("numpy", "torch"),
            with_files=True,
        )
        try:
            kind = {name: compared(value) for name, value in code.items()}
        except CodeTooLong:
            self.why_not = f"the pickled dataset has more than {_MOST_MIB} MiB"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self.why_not = f"the pickled dataset cannot be compared ({why})"
        else:
            self._has_compared = True  # workers that are spawned now get the tensors
            return SharingOffer({**kind, **_settings()})
        log.info("this rank shares no Python workers: %s", self.why_not)
        return None


def _settings() -> dict[str, str]:
    return {
        "Pillow": _digest(pillow_settings()),
        # A process of another namespace cannot be checked for being alive.
        "PID namespace": _digest([_namespace("pid"), _namespace("time")]),
    }


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # time namespaces exist since Linux 5.6
        return ""


def _digest(value: object) -> str:
    return digest_repr(value, _DIGEST_BYTES)
