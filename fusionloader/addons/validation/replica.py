"""The copy of a model that is validated while training changes the model (ol.data §III-A)."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from fusionloader.addons.validation.settings import Replica

_MOST_NAMED = 5


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model within DDP and ``torch.compile``, however they are nested."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(compiled := getattr(model, "_orig_mod", None), nn.Module):
            model = compiled
        else:
            return model


class ModelReplica:
    """A copy of a model that is made once and then overwritten.

    Each copy writes parameters and buffers; hooks and plain attributes stay as they were when the
    replica was made.
    """

    def __init__(self, replica: Replica | None, device: torch.device | None) -> None:
        """``replica`` is a module or a function that makes one; ``None`` copies the model."""
        self._given = replica
        self._device = device
        self._module: nn.Module | None = None

    def copy(self, model: nn.Module) -> nn.Module:
        """Copies a model's parameters and buffers; returns the replica, in evaluation mode.

        On CUDA the copy is enqueued to the current stream, between two steps of training.

        Raises:
            ValueError: the model has other names, shapes or dtypes than the replica.
            TypeError: the model cannot be copied, or is sharded and no ``replica`` was given.
        """
        model = unwrapped(model)
        if _is_sharded(model):
            source, names = _full_state(model), _Names("state_dict")
        else:
            source, names = tensors_of(model), _Names("parameters")
        if self._module is None:
            self._module = self._made(model)
        inner = unwrapped(self._module)
        target = names.of(inner)
        _check_structure(source, target)
        with torch.no_grad():
            _copy(list(target.values()), [source[name] for name in target])
        return self._module.eval()

    def drop(self) -> None:
        """Makes the next copy begin with a new replica, unless it was given."""
        self._module = None

    def _made(self, model: nn.Module) -> nn.Module:
        if self._given is None:
            if _is_sharded(model):
                raise TypeError(
                    "the model's parameters are sharded (FSDP), and a shard cannot be validated "
                    "by itself: give OverlappedValidation(replica=...) an unsharded module of "
                    "the same structure, or a function that makes one"
                )
            replica = _deep_copy(model)
        elif isinstance(self._given, nn.Module):
            replica = self._given
        else:
            replica = self._given()
        if self._device is not None:
            replica.to(self._device)
        return replica.requires_grad_(False)


class _Names:
    """Tensors by which two models are compared: parameters and buffers, or their state dict."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def of(self, model: nn.Module) -> dict[str, torch.Tensor]:
        if self._kind == "parameters":
            return tensors_of(model)
        state = model.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns a model's parameters and buffers by name; a shared tensor once."""
    found: dict[str, torch.Tensor] = dict(model.named_parameters())
    found.update(model.named_buffers())
    return found


def _deep_copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a module holds: locks, files, tensors of a graph
        raise TypeError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}): give "
            "OverlappedValidation(replica=...) a module of the same structure, or a function "
            "that makes one"
        ) from error


def _check_structure(source: dict[str, torch.Tensor], target: dict[str, torch.Tensor]) -> None:
    differing = [f"{name} is missing" for name in target if name not in source]
    differing += [f"{name} is new" for name in source if name not in target]
    for name in target.keys() & source.keys():
        ours, theirs = _kind(target[name]), _kind(source[name])
        if ours != theirs:
            differing.append(f"{name} is {theirs} and was {ours}")
    if differing:
        listed = sorted(differing)
        more = f", and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
        raise ValueError(
            "the model has another structure than its replica, into which it is copied: "
            f"{'; '.join(listed[:_MOST_NAMED])}{more}. Make another OverlappedValidation when a "
            "model changes its parameters or buffers"
        )


def _kind(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _copy(targets: list[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, [tensor.detach() for tensor in sources])


def _is_sharded(model: nn.Module) -> bool:
    """Whether any parameter is a ``DTensor``, of which this rank holds a part."""
    module = sys.modules.get("torch.distributed.tensor")  # not imported: then there is none
    if module is None:
        return False
    return any(isinstance(parameter, module.DTensor) for parameter in model.parameters())


def _full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors of the full state dict, gathered from all ranks: a collective.

    Buffers that are not persistent are not in it.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
