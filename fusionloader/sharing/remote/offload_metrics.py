"""Metrics of FastFlow's decision, stored from run to run so that they are measured once.

There are three kinds, as in Table 2 of the paper (Um et al., "FastFlow", PVLDB 16(5), 2023, §5.2):
by model; by plan and model; by plan, model and remote nodes. Each is a JSON file in the user's
cache folder, named by a digest of its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionloader.scheduler.offload.decision import Candidate, LocalMetrics, RemoteMetrics
from fusionloader.system.user_cache import cache_folder

log = logging.getLogger("fusionloader.remote")

FORMAT = 1
_LARGEST = 1 << 16  # bytes of a file


class _Unusable(ValueError):
    """A file of metrics has other contents than expected."""


@dataclass(frozen=True, slots=True)
class MetricKeys:
    """What metrics depend on.

    Attributes:
        model: identifies the training by its script, batch size and device, because a loader does
            not see the model.
        plan: digest of what is done to a sample.
        local_workers: number of workers of this machine, whose rate is measured together.
        nodes: hosts of remote workers, in any order.
        machine: name of this machine, because several may share a home folder.
    """

    model: str
    plan: str
    local_workers: int
    nodes: Sequence[str]
    machine: str = platform.node()

    def model_key(self) -> list[str]:
        """Returns the key of metrics that depend on training alone."""
        return ["model", self.machine, self.model]

    def plan_key(self) -> list[str]:
        """Returns the key of metrics that depend on local workers, too."""
        return ["plan", self.machine, self.model, self.plan, str(self.local_workers)]

    def nodes_key(self) -> list[str]:
        """Returns the key of metrics that depend on remote workers, too."""
        return [*self.plan_key(), "nodes", *sorted(self.nodes)]


class MetricStore:
    """Stores metrics in a folder; those that cannot be read or written are measured again."""

    def __init__(self, folder: Path | None = None) -> None:
        """Uses ``folder``, or ``offload`` in the user's cache folder."""
        self._folder = folder

    def local(self, keys: MetricKeys) -> LocalMetrics | None:
        """Returns the metrics of training and local workers, ``None`` unless all are stored."""
        model = self._load(keys.model_key())
        plan = self._load(keys.plan_key())
        if model is None or plan is None:
            return None
        try:
            return LocalMetrics(
                training_rate=_positive(model, "training_rate"),
                local_rate=_positive(plan, "local_rate"),
                local_cost=_positive(plan, "local_cost"),
            )
        except _Unusable as error:
            self._ignore(keys.plan_key(), error)
            return None

    def remote(self, keys: MetricKeys) -> dict[Candidate, RemoteMetrics]:
        """Returns the stored metrics of remote workers, by the kind of request."""
        found = self._load(keys.nodes_key())
        if found is None:
            return {}
        try:
            return {Candidate[_kind(name)]: _remote(each) for name, each in found.items()}
        except _Unusable as error:
            self._ignore(keys.nodes_key(), error)
            return {}

    def save_local(self, keys: MetricKeys, metrics: LocalMetrics) -> None:
        """Stores the metrics of training and local workers, if all are finite and positive."""
        plan = {"local_rate": float(metrics.local_rate), "local_cost": float(metrics.local_cost)}
        if _all_positive(plan.values()) and _all_positive([metrics.training_rate]):
            self._save(keys.model_key(), {"training_rate": float(metrics.training_rate)})
            self._save(keys.plan_key(), plan)

    def save_remote(self, keys: MetricKeys, metrics: Mapping[Candidate, RemoteMetrics]) -> None:
        """Stores the metrics of remote workers, without kinds that have prepared nothing."""
        values = {
            kind.name: {
                "remote_rate": float(each.remote_rate),
                "remote_cost": float(each.remote_cost),
            }
            for kind, each in metrics.items()
            if _all_positive([each.remote_rate, each.remote_cost])
        }
        if values:
            self._save(keys.nodes_key(), values)

    # ---- files ---------------------------------------------------------------------------------

    def path(self, key: Sequence[str]) -> Path:
        """Returns the file with the metrics of a key."""
        folder = self._folder or cache_folder() / "offload"
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
        return folder / f"{digest}.json"

    def _load(self, key: list[str]) -> dict[str, Any] | None:
        try:
            with open(self.path(key), "rb") as file:
                content = file.read(_LARGEST + 1)
            return _checked(content, key)
        except FileNotFoundError:
            return None
        except (OSError, _Unusable) as error:
            self._ignore(key, error)
            return None

    def _save(self, key: list[str], values: dict[str, Any]) -> None:
        """Writes a file and renames it into place, so that no process reads a part of it."""
        content = json.dumps({"format": FORMAT, "key": key, "values": values}).encode()
        try:
            path = self.path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(name, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            log.info("metrics of offloading are measured in each run: %s", error)

    def _ignore(self, key: list[str], error: Exception) -> None:
        file = self.path(key)
        log.info("metrics of offloading are measured again, as %s is not usable: %s", file, error)


def _checked(content: bytes, key: list[str]) -> dict[str, Any]:
    if len(content) > _LARGEST:
        raise _Unusable(f"it has more than {_LARGEST} bytes")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _Unusable(f"not of format {FORMAT}")
    values = found.get("values")
    if found.get("key") != key or not isinstance(values, dict):
        raise _Unusable("it is of something else")
    return values


def _kind(name: str) -> str:
    if name not in Candidate.__members__:
        raise _Unusable(f"unknown kind of request {name!r}")
    return name


def _remote(values: object) -> RemoteMetrics:
    if not isinstance(values, dict):
        raise _Unusable(f"{values!r} is no pair of metrics")
    return RemoteMetrics(_positive(values, "remote_rate"), _positive(values, "remote_cost"))


def _positive(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    if not isinstance(value, float) or not _all_positive([value]):
        raise _Unusable(f"{name} is {value!r}, not a finite number above 0")
    return value


def _all_positive(values: Iterable[float]) -> bool:
    return all(0 < value < math.inf for value in values)
