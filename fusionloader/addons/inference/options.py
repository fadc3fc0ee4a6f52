"""Options of a ``Preprocessor``: plain values, frozen, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Literal

import torch

from fusionloader.options.loader_options import as_context
from fusionloader.system.amounts import parse_seconds
from fusionloader.system.limits.control_groups import cpu_quota
from fusionloader.system.limits.processors import cores_allowed

WhenFull = Literal["wait", "raise"]

_WHEN_FULL = ("wait", "raise")
# Each queued image has a slot of shared memory; there are 65536 slots, in two dozen sizes.
MOST_QUEUED = 2048
_LEAST_DEFAULT = 256
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessorOptions:
    """The checked arguments of a ``Preprocessor``, without its transform.

    Attributes:
        max_delay: seconds.
        timeout: seconds; 0 for no limit.
        device: a CUDA device; ``None`` if tensors stay in ordinary memory.
        context: ``None`` if workers are bare interpreters.
    """

    num_workers: int
    max_batch: int
    max_delay: float
    max_queued: int
    when_full: WhenFull
    seed: int | None
    device: torch.device | None
    timeout: float
    context: BaseContext | None

    @classmethod
    def of(
        cls,
        *,
        num_workers: int | None,
        max_batch: int,
        max_delay: float | str,
        max_queued: int | None,
        when_full: WhenFull,
        seed: int | None,
        device: torch.device | str | int | None,
        timeout: float | str,
        multiprocessing_context: BaseContext | str | None,
    ) -> PreprocessorOptions:
        """Returns the options for a user's arguments.

        Raises:
            ValueError: a value is out of its range.
        """
        workers = cores_here() if num_workers is None else num_workers
        _check_positive("num_workers", workers, 1 << 12)
        _check_positive("max_batch", max_batch, 1 << 16)
        queued = max_queued
        if queued is None:
            queued = min(max(_LEAST_DEFAULT, 4 * max_batch, 16 * workers), MOST_QUEUED)
        _check_positive("max_queued", queued, MOST_QUEUED)
        if when_full not in _WHEN_FULL:
            raise ValueError(f"when_full should be one of {_WHEN_FULL}, not {when_full!r}")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed should be an int or None, not {seed!r}")
        return cls(
            num_workers=workers,
            max_batch=max_batch,
            max_delay=parse_seconds(max_delay),
            max_queued=queued,
            when_full=when_full,
            seed=None if seed is None else seed & _MASK,
            device=_device(device),
            timeout=parse_seconds(timeout),
            context=as_context(multiprocessing_context),
        )


def cores_here() -> int:
    """Returns how many cores this process may use, within a container's quota."""
    cores = cores_allowed()
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def check_number(name: str, value: Any) -> int:
    """Returns a key or an epoch.

    Raises:
        ValueError: it is not an int between 0 and 2**64 - 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MASK:
        raise ValueError(f"{name} should be an int between 0 and 2**64 - 1, not {value!r}")
    return value


def _check_positive(name: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name} should be an int between 1 and {most}, not {value!r}")


def _device(device: torch.device | str | int | None) -> torch.device | None:
    if device is None:
        return None
    found = torch.device(device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f'device should be None, "cpu" or a CUDA device, not {device!r}')
    if found.type == "cuda" and found.index is None:  # each thread has a current device of its own
        found = torch.device("cuda", torch.cuda.current_device())
    return found if found.type == "cuda" else None
