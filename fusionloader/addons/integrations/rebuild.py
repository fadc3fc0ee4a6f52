"""Builds a FusionLoader from another loader's arguments, with some of them changed."""

from __future__ import annotations

import inspect
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from fusionloader.loader import FusionLoader

_ARGUMENTS = tuple(inspect.signature(FusionLoader.__init__).parameters)[1:]
# FusionLoader's arguments beyond DataLoader's, which frameworks lose when they rebuild loaders.
EXTRA_ARGUMENTS = tuple(
    name for name in _ARGUMENTS if name not in inspect.signature(DataLoader.__init__).parameters
)
_OF_SAMPLER = ("batch_size", "shuffle", "sampler", "drop_last")


def fusion_of(loader: DataLoader[Any], **changes: Any) -> FusionLoader[Any]:
    """Returns a ``FusionLoader`` with the arguments of ``loader``, of any DataLoader class.

    The samplers are the same objects. ``changes`` replace arguments.
    """
    arguments: dict[str, Any] = {}
    for name in _ARGUMENTS:
        if hasattr(loader, name):
            arguments[name] = getattr(loader, name)
    arguments |= {"shuffle": None} | changes  # the loader has made its sampler already
    if arguments["num_workers"] == 0:
        arguments["prefetch_factor"] = None
    sampler = arguments["batch_sampler"]
    iterable = loader._dataset_kind == 1
    if iterable:
        arguments["sampler"] = arguments["batch_sampler"] = None
    elif sampler is not None and type(sampler) is not BatchSampler:
        for name in _OF_SAMPLER:
            arguments.pop(name, None)
    elif sampler is not None:  # one that DataLoader made: passed as its parts
        arguments["batch_sampler"] = None
        arguments["sampler"] = sampler.sampler
        arguments["batch_size"], arguments["drop_last"] = sampler.batch_size, sampler.drop_last
    return FusionLoader(**arguments)
