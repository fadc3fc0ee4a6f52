"""Hugging Face Accelerate: ``prepare`` keeps a FusionLoader, which Accelerate's own replaces.

Accelerate shards, synchronises and counts in a wrapper around a ``DataLoader`` that it creates.
This module lets it do that, and then replaces the inner loader by a FusionLoader.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from fusionloader.addons.integrations.rebuild import EXTRA_ARGUMENTS, fusion_of
from fusionloader.loader import FusionLoader

__all__ = ["prepare"]


def prepare(accelerator: Accelerator, *objects: Any, **arguments: Any) -> Any:
    """Returns the result of ``accelerator.prepare(*objects)``, with FusionLoaders inside.

    A prepared loader is Accelerate's wrapper. It shards (``even_batches`` and ``split_batches``
    apply), moves batches to the device, sets the epoch, and has ``end_of_dataloader`` and
    ``remainder``. ``save_state`` and ``load_state`` include its position.

    Args:
        accelerator: the ``Accelerator``.
        objects: as for ``accelerator.prepare``: loaders, models, optimizers, schedulers.
        arguments: other arguments of ``accelerator.prepare``.
    """
    prepared = [
        _prepare_loader(accelerator, each) if isinstance(each, FusionLoader) else each
        for each in objects
    ]
    return accelerator.prepare(*prepared, **arguments)


def adopt(prepared: Any, **options: Any) -> Any:
    """Puts a FusionLoader into a loader that Accelerate has prepared, and returns the latter.

    Args:
        prepared: the result of ``accelerator.prepare`` for a ``DataLoader``.
        options: arguments that FusionLoader has beyond DataLoader's.
    """
    inner = getattr(prepared, "base_dataloader", None)
    if isinstance(inner, DataLoader) and not isinstance(inner, FusionLoader):
        device = getattr(prepared, "device", None)
        if "device" not in options and device is not None and torch.device(device).type == "cuda":
            options["device"] = device
        prepared.base_dataloader = fusion_of(inner, **options)
        prepared.dl_state_dict = prepared.base_dataloader.state_dict()
        # Accelerate then saves the loader's state; it does not need torchdata for that.
        prepared.use_stateful_dataloader = True
    return prepared


def _prepare_loader(accelerator: Accelerator, loader: FusionLoader[Any]) -> Any:
    if loader.__dict__.get("_prepared"):
        return loader
    loader._adopted = True  # no warning that the prepared loader is not a FusionLoader
    prepared = accelerator.prepare_data_loader(loader)
    options = {name: getattr(loader, name) for name in EXTRA_ARGUMENTS}
    if options["device"] is None:
        del options["device"]
    adopt(prepared, **options)
    prepared._is_accelerate_prepared = True
    return prepared
