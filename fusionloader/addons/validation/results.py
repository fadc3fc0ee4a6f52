"""The result of a validation, and the counters of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed

from fusionloader.addons.validation.sums import Sums, merged, metrics_of


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of validating an epoch's model, on this rank.

    Attributes:
        epoch: the epoch that was passed to ``start``.
        metrics: values by name: sums divided by counts, totals, or values of metrics. Scalars are
            Python numbers. Empty if ``val_loader`` had no batches.
        sums: the sums behind the values: a ``Total`` by name, or a torchmetrics metric.
        batches: number of evaluated batches.
        samples: number of samples: rows of the first tensor of each batch.
        seconds: time from ``start`` until the sums were merged.
        skipped: whether the validation was skipped because another one was running
            (``when_busy="skip"``).
    """

    epoch: int
    metrics: dict[str, Any] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)
    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    skipped: bool = False

    def all_reduce(self, group: distributed.ProcessGroup | None = None) -> ValidationResult:
        """Returns the result of all ranks: their sums added in the order of ranks.

        This is a collective: all ranks of the group call it in the same order, in the thread that
        trains, so that it does not run beside collectives of training.

        Raises:
            ValueError: the ranks' epochs, names or metrics differ; raised on every rank.
            RuntimeError: ``torch.distributed`` was not initialised.
        """
        if not distributed.is_available() or not distributed.is_initialized():
            raise RuntimeError(
                "all_reduce() adds the sums of several ranks: call it after "
                "torch.distributed.init_process_group()"
            )
        found: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(found, self, group)
        ranks: list[ValidationResult] = found
        epochs = [f"{each.epoch}{' (skipped)' if each.skipped else ''}" for each in ranks]
        if len(set(epochs)) > 1:
            raise ValueError(
                f"the ranks have results of the epochs {', '.join(epochs)}: each should add up "
                'its results in the order of epochs, and with when_busy="wait" none is skipped'
            )
        if self.skipped:
            return self
        sums = merged([each.sums for each in ranks if each.batches])
        return ValidationResult(
            self.epoch,
            metrics_of(sums),
            sums,
            sum(each.batches for each in ranks),
            sum(each.samples for each in ranks),
            max(each.seconds for each in ranks),
        )


@dataclass(frozen=True, slots=True)
class ValidationStats:
    """Counters since the ``OverlappedValidation`` was made; durations in seconds.

    Attributes:
        started: number of started validations.
        finished: number of validations that have ended, with a result or an error.
        skipped: number of validations that were skipped because another one was running.
        copies: number of copies of the model into its replica.
        copy_seconds: time of the training thread in these copies; the first makes the replica.
        waits: how often ``start`` waited for the previous validation.
        wait_seconds: time of the training thread in these waits.
        batches: number of evaluated batches.
        samples: number of samples in these batches.
        seconds_by_part: time of each part in ``evaluate``, without waiting for batches.
    """

    started: int
    finished: int
    skipped: int
    copies: int
    copy_seconds: float
    waits: int
    wait_seconds: float
    batches: int
    samples: int
    seconds_by_part: tuple[float, ...]


def rows_of(batch: object) -> int:
    """Returns the length of the first tensor of a batch, 0 without tensors."""
    leaves = torch.utils._pytree.tree_leaves(batch)
    tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim())
    return next((len(tensor) for tensor in tensors), 0)
