"""Hugging Face transformers: a mixin for a ``Trainer`` that uses FusionLoaders."""

from __future__ import annotations

from typing import Any

from transformers import trainer

from fusionloader.addons.integrations.accelerate import adopt, skip_first_batches

__all__ = ["FusionTrainerMixin"]

# A Trainer that resumes has no other place where its loader for the rest of the epoch is made.
trainer.skip_first_batches = skip_first_batches  # type: ignore[attr-defined]


class FusionTrainerMixin:
    """First base class of a trainer: ``class MyTrainer(FusionTrainerMixin, Trainer)``.

    Attributes:
        fusion_options: arguments that FusionLoader has beyond DataLoader's (``device``, ``seed``,
            ``on_error`` ...).
    """

    fusion_options: dict[str, Any] = {}  # noqa: RUF012

    def get_train_dataloader(self) -> Any:
        """Returns the ``Trainer``'s loader with a FusionLoader in it."""
        return self._adopted(super().get_train_dataloader())  # type: ignore[misc]

    def get_eval_dataloader(self, *arguments: Any, **keywords: Any) -> Any:
        """Returns the ``Trainer``'s loader with a FusionLoader in it."""
        return self._adopted(super().get_eval_dataloader(*arguments, **keywords))  # type: ignore[misc]

    def get_test_dataloader(self, *arguments: Any, **keywords: Any) -> Any:
        """Returns the ``Trainer``'s loader with a FusionLoader in it."""
        return self._adopted(super().get_test_dataloader(*arguments, **keywords))  # type: ignore[misc]

    def _adopted(self, prepared: Any) -> Any:
        return adopt(prepared, **self.fusion_options)
