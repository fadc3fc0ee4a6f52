"""Lightning: a callback that validates beside the next epoch, instead of the Trainer's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import lightning
from torch import distributed

from fusionloader.addons.validation import OverlappedValidation, ValidationResult
from fusionloader.addons.validation.settings import Evaluate
from fusionloader.options.aliases import AnyLoader, Batch

__all__ = ["OverlappedValidationCallback"]


class OverlappedValidationCallback(lightning.Callback):
    """Validates the ``LightningModule`` after its epochs, while the next one trains.

    The Trainer must have no validation loader. Metrics go to its loggers as ``val/<name>``, with
    their ``epoch``. They are not in ``callback_metrics``: the model has changed when they come, and
    a checkpoint would be chosen by the metrics of an earlier epoch.

    With several ranks, results are summed over all ranks before the next validation starts.

    Attributes:
        results: results of all validated epochs.

    Args:
        evaluate: as in ``OverlappedValidation``; the model is a copy of the ``LightningModule``.
        val_loader: as in ``OverlappedValidation``.
        every_n_epochs: number of epochs between two validations.
        on_result: called with each result, in the training thread.
        options: other options of ``OverlappedValidation``.

    Raises:
        ValueError: ``every_n_epochs`` is not a positive int, or an option is out of range.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        val_loader: AnyLoader | Iterable[Batch],
        *,
        every_n_epochs: int = 1,
        on_result: Callable[[ValidationResult], object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(every_n_epochs, int) or every_n_epochs < 1:
            raise ValueError(f"every_n_epochs should be a positive int, not {every_n_epochs!r}")
        self.results: list[ValidationResult] = []
        self._every, self._on_result = every_n_epochs, on_result
        self._validation = OverlappedValidation(evaluate, val_loader, **options)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Starts a validation, and logs finished results."""
        if (trainer.current_epoch + 1) % self._every:
            return
        if trainer.world_size > 1:  # at a point where all ranks have the same results
            self._log(trainer, self._validation.finish())
        self._validation.start(pl_module, trainer.current_epoch)
        if trainer.world_size == 1:
            self._log(trainer, self._validation.results())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Waits for the last validation."""
        self._log(trainer, self._validation.finish())
        self._validation.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Gives up the running validation."""
        self._validation.close()

    def _log(self, trainer: Any, results: Iterable[ValidationResult]) -> None:
        for result in results:
            if trainer.world_size > 1 and distributed.is_initialized():
                result = result.all_reduce()
            self.results.append(result)
            scalars = {
                f"val/{name}": float(value)
                for name, value in result.metrics.items()
                if isinstance(value, (int, float))
            }
            for logger in trainer.loggers:
                logger.log_metrics({**scalars, "epoch": result.epoch}, trainer.global_step)
            if self._on_result is not None:
                self._on_result(result)
