"""Finds what ``evaluate`` has changed in the model that it was given."""

from __future__ import annotations

from torch import nn

from fusionloader.addons.validation.replica import tensors_of


class ModelWatch:
    """Parameters, buffers and modes of a model, as they are when this is made."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._tensors = tensors_of(model)
        self._versions = {name: tensor._version for name, tensor in self._tensors.items()}
        self._modes = {name: module.training for name, module in model.named_modules()}

    def check(self) -> None:
        """Compares the model with what it was.

        Raises:
            RuntimeError: it was changed; with the name of what was.
        """
        now = tensors_of(self._model)
        changed = [
            name
            for name in now.keys() | self._tensors.keys()
            if now.get(name) is not self._tensors.get(name)
            or now[name]._version != self._versions[name]
        ]
        if changed:
            raise RuntimeError(
                f"evaluate changed {', '.join(sorted(changed))} of the model that it validates: "
                "parts and batches would see different models. It should leave the model in "
                "evaluation mode (BatchNorm writes its statistics in training mode) and write to "
                "no parameter or buffer"
            )
        modes = {name: module.training for name, module in self._model.named_modules()}
        switched = [name or "the model" for name in modes if modes[name] != self._modes.get(name)]
        if switched:
            raise RuntimeError(
                f"evaluate switched {', '.join(sorted(switched))} between training and evaluation "
                "mode: the model comes in evaluation mode, and should stay there"
            )
