"""Merges the results of ``evaluate``: sums and counts are added, averages are not averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusionloader.addons.validation.metric_states import is_metric, merged_metrics, values_of

Number = int | float | complex


@dataclass(frozen=True, slots=True)
class Total:
    """A sum and the count that divides it.

    Attributes:
        sum: tensor in host memory: float64, complex128 or int64.
        count: such a tensor; ``None`` for a total without a count.
    """

    sum: torch.Tensor
    count: torch.Tensor | None

    @property
    def value(self) -> Number | torch.Tensor:
        """The sum divided by the count, or the sum; scalars are Python numbers."""
        if self.count is None:
            found = self.sum
        else:  # as float64: int64 by int64 would give torch's default dtype
            found = torch.true_divide(_real(self.sum), _real(self.count))
        return found.item() if found.dim() == 0 else found


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.double()


Sums = Any
"""``dict[str, Total]``, or a torchmetrics ``Metric`` or ``MetricCollection``."""


def read(returned: object) -> Sums:
    """Converts a result of ``evaluate`` to totals in float64 and host memory.

    Raises:
        TypeError: it is neither a mapping of names to numbers or pairs, nor a metric.
    """
    if is_metric(returned):
        return returned
    if not isinstance(returned, Mapping):
        raise TypeError(
            "evaluate should return a mapping of names to (sum, count) pairs or totals, or a "
            f"torchmetrics Metric or MetricCollection, not {_short(returned)}"
        )
    return {_name(name): _total(name, value) for name, value in returned.items()}


def merged(parts: Sequence[Sums]) -> Sums:
    """Returns the sums of all parts, added in their order; ``{}`` without parts.

    Raises:
        ValueError: parts have other names, shapes or metrics than the first one.
    """
    if not parts:
        return {}
    if any(is_metric(part) for part in parts):
        return merged_metrics(parts)
    first: dict[str, Total] = dict(parts[0])
    for number, part in enumerate(parts[1:], start=1):
        if part.keys() != first.keys():
            raise ValueError(
                f"evaluate returned {sorted(first)} of part 0 and {sorted(part)} of part {number}: "
                "it should return the same names whatever batches it gets"
            )
        for name, total in part.items():
            first[name] = _added(name, first[name], total)
    return first


def metrics_of(sums: Sums) -> dict[str, Any]:
    """Returns the values: sums divided by counts, totals, or values of metrics."""
    if is_metric(sums):
        return {name: _plain(value) for name, value in values_of(sums).items()}
    return {name: total.value for name, total in sums.items()}


def _added(name: str, a: Total, b: Total) -> Total:
    same = (a.count is None) == (b.count is None) and a.sum.shape == b.sum.shape
    if a.count is not None and b.count is not None:
        same = same and a.count.shape == b.count.shape
    if not same:
        raise ValueError(
            f"evaluate returned {name!r} as {_described(a)} and as {_described(b)}: all parts "
            "should return it in one form"
        )
    count = None if a.count is None or b.count is None else a.count + b.count
    return Total(a.sum + b.sum, count)


def _described(total: Total) -> str:
    kind = "a total" if total.count is None else "a (sum, count) pair"
    return f"{kind} of shape {tuple(total.sum.shape)}"


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"evaluate should return a mapping of strings, and {name!r} is none")
    return name


def _total(name: str, value: object) -> Total:
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise TypeError(
                f"evaluate returned {len(value)} values for {name!r}: a (sum, count) pair, or one "
                "total, is expected"
            )
        return Total(_exact(name, value[0]), _exact(name, value[1]))
    return Total(_exact(name, value), None)


def _exact(name: str, value: object) -> torch.Tensor:
    """Returns a number or tensor without loss, in a dtype for exact or precise sums."""
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64 if type(value) is float else None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"evaluate should return numbers or tensors, and {name!r} is {_short(value)}"
        ) from error
    tensor = tensor.detach()
    if tensor.is_complex():
        kind = torch.complex128
    elif tensor.is_floating_point():
        kind = torch.float64
    else:
        kind = torch.int64
    return tensor.to("cpu", kind, copy=True)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value.item() if value.dim() == 0 else value
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
