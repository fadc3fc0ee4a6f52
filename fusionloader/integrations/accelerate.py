"""Hugging Face Accelerate: ``prepare`` keeps a FusionLoader, where Accelerate's own rebuilds it.

Accelerate shards, synchronises and counts in a wrapper of its own around a ``DataLoader`` that it
makes anew. Here it does all that, and then the loader within is replaced by a FusionLoader.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from fusionloader.integrations.rebuild import OWN_ARGUMENTS, fusion_of
from fusionloader.loader import FusionLoader


def prepare(accelerator: Accelerator, *objects: Any, **arguments: Any) -> Any:
    """Returns what ``accelerator.prepare(*objects)`` would, with FusionLoaders left in place.

    A prepared loader is Accelerate's: it shards (``even_batches`` and ``split_batches`` hold),
    moves batches to the device, sets the epoch, knows ``end_of_dataloader`` and ``remainder``, and
    its position is saved and loaded by ``save_state`` and ``load_state``.
    """
    prepared = [
        _prepare_loader(accelerator, each) if isinstance(each, FusionLoader) else each
        for each in objects
    ]
    return accelerator.prepare(*prepared, **arguments)


def adopt(prepared: Any, **options: Any) -> Any:
    """Puts a FusionLoader into a loader that Accelerate has prepared, and returns that.

    Args:
        prepared: what ``accelerator.prepare`` made of a ``DataLoader``.
        options: FusionLoader's own arguments.
    """
    within = getattr(prepared, "base_dataloader", None)
    if isinstance(within, DataLoader) and not isinstance(within, FusionLoader):
        device = getattr(prepared, "device", None)
        if "device" not in options and device is not None and torch.device(device).type == "cuda":
            options["device"] = device
        prepared.base_dataloader = fusion_of(within, **options)
        prepared.dl_state_dict = prepared.base_dataloader.state_dict()
        # By which Accelerate knows loaders with a state; torchdata is not needed for it.
        prepared.use_stateful_dataloader = True
    return prepared


def _prepare_loader(accelerator: Accelerator, loader: FusionLoader[Any]) -> Any:
    if loader.__dict__.get("_prepared"):
        return loader
    loader._adopted = True  # says that losing the class is no accident this time
    prepared = accelerator.prepare_data_loader(loader)
    own = {name: getattr(loader, name) for name in OWN_ARGUMENTS}
    if own["device"] is None:
        del own["device"]
    adopt(prepared, **own)
    prepared._is_accelerate_prepared = True
    return prepared
