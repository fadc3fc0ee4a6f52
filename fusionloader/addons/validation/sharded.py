"""Models whose parameters are sharded by FSDP2 (``fully_shard``)."""

from __future__ import annotations

import sys

import torch
from torch import nn


def is_sharded(model: nn.Module) -> bool:
    """Whether any parameter is a ``DTensor``, of which this rank holds a part."""
    module = sys.modules.get("torch.distributed.tensor")  # not imported: then there is none
    if module is None:
        return False
    return any(isinstance(parameter, module.DTensor) for parameter in model.parameters())


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors of the full state dict, gathered from all ranks: a collective.

    Buffers that are not persistent are not in it.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
