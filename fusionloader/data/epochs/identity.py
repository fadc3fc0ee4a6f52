"""The dataset and the job that a saved state belongs to."""

from __future__ import annotations

import hashlib
import os

import torch

from fusionloader.data.epochs.stateful import is_plain_batch_sampler
from fusionloader.options.aliases import AnyDataset, State
from fusionloader.options.loader_options import LoaderOptions

_LOOKED_AT = 16


def describe_dataset(dataset: AnyDataset) -> State:
    """Returns type and length of a dataset, and a digest of up to 16 of its file names.

    Folders do not count, so they may be moved.
    """
    described: State = {
        "dataset_size": None,
        "dataset_type": type(dataset).__qualname__,
        "dataset_files": None,
    }
    try:
        described["dataset_size"] = len(dataset)  # type: ignore[arg-type]
    except Exception:  # any: it is code of the user
        return described
    samples = getattr(dataset, "samples", None)
    if isinstance(samples, list) and samples:
        step = -(-len(samples) // _LOOKED_AT)
        digest = hashlib.blake2b(digest_size=8)
        for entry in samples[::step]:
            path = entry[0] if isinstance(entry, (tuple, list)) and entry else None
            if not isinstance(path, str):
                return described
            digest.update(os.path.basename(path).encode(errors="surrogateescape") + b"\0")
        described["dataset_files"] = digest.hexdigest()
    return described


def describe_loader(options: LoaderOptions) -> State:
    """Returns what must be equal in the loader that saves a state and the one that loads it."""
    return {
        **describe_dataset(options.dataset),
        "batch_size": _batch_size(options),
        "drop_last": options.drop_last,
        "world_size": _world_size(options),
    }


def _batch_size(options: LoaderOptions) -> int | None:
    """Returns the samples of a mini-batch; ``None`` with a batch sampler of the user's."""
    batches = options.batch_sampler
    size = batches.batch_size if is_plain_batch_sampler(batches) else options.batch_size
    return None if size is None else int(size)


def _world_size(options: LoaderOptions) -> int:
    """Returns the number of ranks, from the sampler or else from ``torch.distributed``."""
    for sampler in (options.sampler, options.batch_sampler, options.inner_sampler):
        replicas = getattr(sampler, "num_replicas", None)
        if isinstance(replicas, int):
            return replicas
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 1
