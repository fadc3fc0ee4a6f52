"""Hugging Face Accelerate: ``prepare`` keeps a FusionLoader, which Accelerate's own replaces.

Accelerate shards, synchronises and counts in a wrapper around a ``DataLoader`` that it creates.
This module lets it do that, and then replaces the inner loader by a FusionLoader.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import accelerate
import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher
from torch.utils.data import DataLoader

from fusionloader.addons.integrations.rebuild import EXTRA_ARGUMENTS, fusion_of
from fusionloader.data.epochs.sampling import samplers_of
from fusionloader.loader import FusionLoader
from fusionloader.options.loader_options import LoaderOptions

__all__ = ["prepare", "skip_first_batches"]


def prepare(accelerator: Accelerator, *objects: Any, **arguments: Any) -> Any:
    """Returns the result of ``accelerator.prepare(*objects)``, with FusionLoaders inside.

    A prepared loader is Accelerate's wrapper. It shards (``even_batches`` and ``split_batches``
    apply), moves batches to the device, sets the epoch, and has ``end_of_dataloader`` and
    ``remainder``. ``save_state`` and ``load_state`` include its position. The accelerator's
    ``skip_first_batches`` is then that of this module.

    Args:
        accelerator: the ``Accelerator``.
        objects: as for ``accelerator.prepare``: loaders, models, optimizers, schedulers.
        arguments: other arguments of ``accelerator.prepare``.

    Raises:
        ValueError: a sampler takes the share of a rank itself, which Accelerate shares once more.
    """
    accelerator.skip_first_batches = skip_first_batches
    prepared = [
        _prepare_loader(accelerator, each) if isinstance(each, FusionLoader) else each
        for each in objects
    ]
    return accelerator.prepare(*prepared, **arguments)


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """Does what Accelerate's function does, and has a FusionLoader again if there was one.

    A loader that ``load_state`` has set to a place within an epoch is there already: it is returned
    as it is.
    """
    inner = getattr(dataloader, "base_dataloader", None)
    if isinstance(inner, FusionLoader) and inner._state.epochs.resumes_within:
        return dataloader
    skipping = accelerate.skip_first_batches(dataloader, num_batches)
    return adopt(skipping, **_extra(inner)) if isinstance(inner, FusionLoader) else skipping


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
        prepared.adjust_state_dict_for_prefetch = partial(_note_iteration, prepared)
        prepared.load_state_dict = partial(_load, prepared)
        if isinstance(prepared, DataLoaderDispatcher):
            # All ranks write the same file. Only the first one draws batches.
            prepared.use_stateful_dataloader = prepared.state.process_index == 0
            prepared._fetch_batches = partial(_fetch_step, prepared, prepared._fetch_batches)
    return prepared


def _note_iteration(prepared: Any) -> None:
    """Adds the epoch to a state, from which Accelerate sets the epochs of samplers and datasets."""
    prepared.dl_state_dict["iteration"] = prepared.iteration + prepared.end_of_dataloader


def _load(prepared: Any, state: dict[str, Any]) -> None:
    prepared.iteration = state.get("iteration", prepared.iteration)
    prepared.base_dataloader.load_state_dict(state)


def _fetch_step(prepared: Any, fetch: Any, iterator: Any) -> Any:
    """Fetches a step's batches, one for each rank, and keeps the state from before the first."""
    prepared._update_state_dict()
    prepared._update_state_dict = lambda: None
    try:
        return fetch(iterator)
    finally:
        del prepared._update_state_dict


def _prepare_loader(accelerator: Accelerator, loader: FusionLoader[Any]) -> Any:
    if loader.__dict__.get("_prepared"):
        return loader
    loader._adopted = True  # no warning that the prepared loader is not a FusionLoader
    for sampler in samplers_of(LoaderOptions.of(loader)):
        if accelerator.num_processes > 1 and getattr(sampler, "num_replicas", 1) > 1:
            raise ValueError(
                f"Accelerate gives each of {accelerator.num_processes} ranks its share of the "
                f"batches, and {type(sampler).__name__} has taken one already: give it "
                "num_replicas=1, rank=0"
            )
    prepared = adopt(accelerator.prepare_data_loader(loader), **_extra(loader))
    prepared._is_accelerate_prepared = True
    return prepared


def _extra(loader: FusionLoader[Any]) -> dict[str, Any]:
    """Returns the arguments that DataLoader does not have; no device means Accelerate's."""
    options = {name: getattr(loader, name) for name in EXTRA_ARGUMENTS}
    return {name: value for name, value in options.items() if (name, value) != ("device", None)}
