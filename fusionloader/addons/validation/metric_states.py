"""Merges the states of torchmetrics metrics by their own reductions."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_EXACT = ("dim_zero_sum", "dim_zero_cat", "dim_zero_max", "dim_zero_min")


def is_metric(value: object) -> bool:
    """Whether ``value`` is a ``Metric`` or a ``MetricCollection``."""
    module = sys.modules.get("torchmetrics")  # if it is not imported, there is none
    return module is not None and isinstance(value, (module.Metric, module.MetricCollection))


def merged_metrics(parts: Sequence[Any]) -> Any:
    """Returns a metric with the states of all parts, in their order and in host memory.

    The metrics that ``evaluate`` has returned are not changed.

    Raises:
        ValueError: parts returned different metrics, or the same object; or a metric's states
            cannot be merged exactly.
    """
    first = parts[0]
    for number, part in enumerate(parts[1:], start=1):
        if any(part is other for other in parts[:number]):
            raise ValueError(
                "evaluate returned the same metric for two parts, which update it at the same "
                "time: make it within evaluate, or clone() it there"
            )
        if type(part) is not type(first) or _members(part).keys() != _members(first).keys():
            raise ValueError(
                f"evaluate returned {_described(first)} of part 0 and {_described(part)} of part "
                f"{number}: it should return the same metrics whatever batches it gets"
            )
    copies = [copy.deepcopy(part).cpu() for part in parts]
    found = copies[0]
    for part in copies[1:]:
        earlier, later = _members(found), _members(part)
        for name, metric in later.items():
            _add_before(metric, earlier[name])
        found = part
    for metric in _members(found).values():
        # compute() must not begin a collective, which other ranks would not join.
        metric.distributed_available_fn = _alone
        metric._computed = None
    return found


def values_of(metric: Any) -> dict[str, Any]:
    """Returns computed values by name; a single metric has the name of its class."""
    value = metric.compute()
    return dict(value) if isinstance(value, Mapping) else {type(metric).__name__: value}


def _members(metric: Any) -> dict[str, Any]:
    """Returns the metrics of a collection, each with its own state, or the metric itself."""
    if isinstance(metric, sys.modules["torchmetrics"].MetricCollection):
        return dict(metric.items(keep_base=True, copy_state=True))
    return {type(metric).__name__: metric}


def _add_before(metric: Any, earlier: Any) -> None:
    """Merges the states of ``earlier`` into ``metric``, in this order."""
    kind = type(metric)
    base = sys.modules["torchmetrics"].Metric
    merge = getattr(kind, "merge_state", None)
    if merge is None:
        raise ValueError(
            "this torchmetrics has no Metric.merge_state: install a newer one, use parts=1, or "
            "return sums and counts"
        )
    if merge is base.merge_state:  # not the class's own
        inexact = [
            state
            for state, reduction in metric._reductions.items()
            if getattr(reduction, "__name__", None) not in _EXACT
        ]
        within = [name for name, child in metric.named_children() if isinstance(child, base)]
        if inexact or within:
            what = f"its state {', '.join(inexact)}" if inexact else f"the metric {within[0]} in it"
            raise ValueError(
                f"{kind.__name__} cannot be merged exactly from several parts, because of {what}: "
                "only sums, concatenations, minima and maxima can. Use parts=1, or return sums "
                "and counts"
            )
    updates = metric._update_count + earlier._update_count
    metric.merge_state(earlier)
    metric._update_count = updates


def _alone() -> bool:
    return False


def _described(metric: Any) -> str:
    return f"{type(metric).__name__}({', '.join(sorted(_members(metric)))})"
