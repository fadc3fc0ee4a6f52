"""The ranks of a job under one analysis: they change phases together, and share what they find.

Ranks wait for each other in training, so that one that goes to another phase by its own clock would
stand in the steps of the others. They meet in the store that ``torchrun`` runs, between steps.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol, TypeVar

from torch import distributed

from fusionloader.cli.analysis.errors import AnalysisError
from fusionloader.cli.analysis.phases import PhaseResult
from fusionloader.system.limits.control_groups import cpu_quota

T = TypeVar("T")

_PREFIX = "fusionloader-analyze"
_PATIENCE = 300.0  # seconds for the others to come to the same step
_JOIN_PATIENCE = 30.0  # seconds for the others to iterate the same loader
_TOGETHER, _APART = "together", "apart"


class RankStore(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: bytes | str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def wait(self, keys: list[str], timeout: timedelta) -> None: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


class AnalyzedRanks:
    """The ranks of a job, or a training of one process, whose meetings cost nothing.

    Attributes:
        rank: number of this one.
        count: number of ranks.
        cores: cores that this rank and its workers may use; ranks of one machine divide the
            machine's cores among them.
        sharing: number of ranks on this machine.
    """

    def __init__(
        self,
        store: RankStore | None = None,
        rank: int = 0,
        count: int = 1,
        machine: str = "0",
        join_patience: float = _JOIN_PATIENCE,
    ) -> None:
        """Ranks with the same ``machine`` share one. All ranks are made at the same time."""
        self._store, self.rank, self.count = store, rank, count
        self._join_patience = join_patience
        self._meetings: Counter[str] = Counter()
        self._joined: dict[str, bool] = {}
        own = machine, frozenset(os.sched_getaffinity(0))
        here = [cores for name, cores in self.meet("machine", own) if name == machine]
        self.sharing = len(here)
        shares = (1 / sum(each in cores for cores in here) for each in own[1])
        self.cores = min(sum(shares), (cpu_quota() or float("inf")) / self.sharing)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> AnalyzedRanks:
        """Returns the ranks that ``torchrun`` has started; one without it.

        Raises:
            AnalysisError: there are several ranks, and no store that they can meet in.
        """
        count = int(environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise AnalysisError(
                f"WORLD_SIZE is {count}, and torchrun runs no store for the ranks to meet in: "
                "start them by torchrun -m fusionloader analyze SCRIPT"
            )
        address, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = vars(distributed)["TCPStore"](address, port, is_master=False)
        prefixed = vars(distributed)["PrefixStore"](f"{_PREFIX}/{attempt}", store)
        return cls(prefixed, int(environ["RANK"]), count, environ.get("GROUP_RANK", "0"))

    def meet(self, name: str, value: T) -> list[T]:
        """Returns what all ranks give, in their order; each waits for all others.

        Raises:
            AnalysisError: another rank does not come.
        """
        if self._store is None:
            return [value]
        number = self._meetings[name]
        self._meetings[name] += 1
        keys = [f"{name}/{number}/{rank}" for rank in range(self.count)]
        # A pickle among processes of one job, as torch's own collectives of objects have it.
        self._store.set(keys[self.rank], pickle.dumps(value))
        for rank, key in enumerate(keys):
            if not self._comes(key, _PATIENCE):
                raise AnalysisError(
                    f"rank {rank} has not come within {_PATIENCE:.0f} s to where rank {self.rank} "
                    f"is ({name}): all ranks should take the same steps on the same loaders"
                )
        return [pickle.loads(bytes(self._store.get(key))) for key in keys]  # noqa: S301

    def join(self, place: str) -> bool:
        """Whether all ranks iterate a loader; the first of them waits for a while to see it."""
        if self._store is None:
            return True
        if place not in self._joined:
            self._joined[place] = self._wait_for_all(self._store, f"join/{place}")
        return self._joined[place]

    def _wait_for_all(self, store: RankStore, key: str) -> bool:
        all_here = store.add(f"{key}/count", 1) == self.count
        if not all_here and self._comes(key, self._join_patience):
            return bytes(store.get(key)).decode() == _TOGETHER
        # Both may be said at once: the first one holds.
        said = store.compare_set(key, "", _TOGETHER if all_here else _APART)
        return bytes(said).decode() == _TOGETHER

    def _comes(self, key: str, seconds: float) -> bool:
        assert self._store is not None
        try:
            self._store.wait([key], timedelta(seconds=seconds))
        except distributed.DistStoreError:
            return False
        return True

    @property
    def apart(self) -> list[str]:
        """The loaders that not all ranks iterate."""
        return [place for place, together in self._joined.items() if not together]


def together(results: list[PhaseResult], waits: list[list[float]]) -> PhaseResult:
    """Returns the result of a job, whose steps are over when the last rank has its data.

    Args:
        results: results of each rank, in the same window.
        waits: seconds of each step within ``next()``, by rank.
    """
    slowest = max(results, key=lambda each: each.waited)
    return PhaseResult(
        min(each.steps for each in results),
        sum(each.samples for each in results),
        max(each.seconds for each in results),
        sum(max(step) for step in zip(*waits, strict=False)),
        sum(each.cpu_seconds for each in results),
        slowest.processors,
    )
