"""Serial validation, with the same result as the overlapped one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fusionloader.addons.validation.replica import unwrapped
from fusionloader.addons.validation.results import ValidationResult
from fusionloader.addons.validation.run import Run, ThreadTeam
from fusionloader.addons.validation.settings import Evaluate, ValidationOptions, device_of
from fusionloader.addons.validation.streams import computing_device
from fusionloader.options.aliases import AnyLoader, Batch


def validate(
    evaluate: Evaluate,
    model: nn.Module,
    val_loader: AnyLoader | Iterable[Batch],
    *,
    epoch: int = 0,
    device: torch.device | str | int | None = None,
    parts: int = 1,
    threads_per_part: int = 1,
) -> ValidationResult:
    """Validates a model and returns the result, which is bit-identical to the overlapped one.

    The model is evaluated without a copy; its modes are restored afterwards. One part computes at a
    time. The arguments are those of ``OverlappedValidation``. Equal results need equal arguments:
    other ``parts`` or ``threads_per_part`` add sums in another order.

    Raises:
        RuntimeError: ``evaluate`` changed the model, or did not read all batches.
        TypeError: ``evaluate`` returned neither sums, totals nor a metric.
        ValueError: results of parts cannot be merged, or an argument is out of range.
    """
    options = ValidationOptions(
        evaluate=evaluate,
        loader=val_loader,
        device=device_of(device),
        parts=parts,
        when_busy="wait",
        threads_per_part=threads_per_part,
        replica=None,
        timeout=None,
    )
    model = unwrapped(model)
    team = ThreadTeam(options, computing_device(options.device, model))
    try:
        with _evaluation_mode(model):
            run = Run(epoch, model, iter(val_loader), options, team, alternating=True)
            try:
                run.wait()
            finally:  # Ctrl-C
                run.stop()
            return run.result()
    finally:
        team.close()


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
