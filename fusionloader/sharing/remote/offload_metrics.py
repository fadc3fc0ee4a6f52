"""Metrics of FastFlow's decision, kept from run to run so that they are measured once.

As in Table 2 of the paper (Um et al., "FastFlow", PVLDB 16(5), 2023, §5.2): by model; by plan and
model; by plan, model and remote nodes. Each is a JSON file of its own in the user's cache folder,
named by a digest of what it is of.
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
    """A file has something else than it should."""


@dataclass(frozen=True, slots=True)
class MetricKeys:
    """What metrics are of.

    Attributes:
        model: tells one training from others, since a loader does not see the model: such as the
            script, the batch size and the device.
        plan: what is done to a sample.
        local_workers: of this machine, since the rate of local workers is theirs together.
        nodes: remote workers, in any order.
        machine: this one; several may share a home folder.
    """

    model: str
    plan: str
    local_workers: int
    nodes: Sequence[str]
    machine: str = platform.node()

    def model_key(self) -> list[str]:
        """Returns the key of what depends on training alone."""
        return ["model", self.machine, self.model]

    def plan_key(self) -> list[str]:
        """Returns the key of what depends on local workers, too."""
        return ["plan", self.machine, self.model, self.plan, str(self.local_workers)]

    def nodes_key(self) -> list[str]:
        """Returns the key of what depends on remote workers, too."""
        return [*self.plan_key(), "nodes", *sorted(self.nodes)]


class MetricStore:
    """Keeps metrics in a folder; what cannot be read or written is measured again."""

    def __init__(self, folder: Path | None = None) -> None:
        """Uses ``folder``, or ``offload`` in the user's cache folder."""
        self._folder = folder

    def local(self, keys: MetricKeys) -> LocalMetrics | None:
        """Returns what is known of training and local workers, ``None`` unless it is all known."""
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
        """Returns what is known of remote workers, by the kind of request."""
        found = self._load(keys.nodes_key())
        if found is None:
            return {}
        try:
            return {Candidate[_kind(name)]: _remote(each) for name, each in found.items()}
        except _Unusable as error:
            self._ignore(keys.nodes_key(), error)
            return {}

    def save_local(self, keys: MetricKeys, metrics: LocalMetrics) -> None:
        """Keeps what was measured of training and local workers, if it is finite and positive."""
        plan = {
            "local_rate": float(metrics.local_rate),
            "local_cost": float(metrics.local_cost),
        }
        if _all_positive(plan.values()) and _all_positive([metrics.training_rate]):
            self._save(keys.model_key(), {"training_rate": float(metrics.training_rate)})
            self._save(keys.plan_key(), plan)

    def save_remote(self, keys: MetricKeys, metrics: Mapping[Candidate, RemoteMetrics]) -> None:
        """Keeps what was measured of remote workers; kinds that prepared nothing are left out."""
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
        """Returns where the metrics of a key are kept.

        Raises:
            RuntimeError: there is no home folder.
        """
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
        except (OSError, RuntimeError, _Unusable) as error:
            self._ignore(key, error)
            return None

    def _save(self, key: list[str], values: dict[str, Any]) -> None:
        """Writes a file, if that is possible; renamed into place, so that none reads a part."""
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
        except (OSError, RuntimeError) as error:
            log.info("metrics of offloading are measured in each run: %s", error)

    def _ignore(self, key: list[str], error: Exception) -> None:
        try:
            where: object = self.path(key)
        except RuntimeError:
            where = "the user's cache folder"
        log.info("metrics of offloading are measured again, as %s is not usable: %s", where, error)


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
