"""What a validation found, and what all of them have counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed

from fusionloader.addons.validation.sums import Sums, merged, metrics_of


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """What the validation of an epoch's model found, on this rank.

    Attributes:
        epoch: as it was given to ``start``.
        metrics: values by name: sums by counts, totals, or what metrics compute. Scalars are Python
            numbers. Empty where ``val_loader`` had no batches.
        sums: what they were made of: a ``Total`` by name, or a torchmetrics metric.
        batches: how many were evaluated.
        samples: rows of the first tensor of each batch.
        seconds: from ``start`` until all was merged.
        skipped: whether it was not done, since another one was under way (``when_busy="skip"``).
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

        A collective: all ranks of the group call it in the same order, and not beside collectives
        of training, so from the thread that trains.

        Raises:
            ValueError: ranks have other epochs, names or metrics; on every rank.
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
    """Counters since it was made; durations in seconds.

    Attributes:
        started: validations that were started.
        finished: those of them that have ended, well or with an error.
        skipped: those that were not started because another one was under way.
        copies: of the model into its replica.
        copy_seconds: of the training thread, for these copies; the first makes the replica.
        waits: times that ``start`` waited for the validation before.
        wait_seconds: of the training thread, for that.
        batches: that were evaluated.
        samples: rows of these batches.
        seconds_by_part: in ``evaluate``, without its waiting for batches.
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
    """Returns the length of the first tensor of a batch, 0 where it has none."""
    leaves = torch.utils._pytree.tree_leaves(batch)
    tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim())
    return next((len(tensor) for tensor in tensors), 0)
