"""A native worker in a process that is prepared as torch's workers are.

User code runs once in it: ``worker_init_fn``, or the training script that multiprocessing imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fusionloader import _native
from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.options.aliases import AnyDataset
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.transforms.plan.stages import Plan
from fusionloader.workers import messages, native_worker, sample_errors
from fusionloader.workers.native_worker import NativeWorkerConfig
from fusionloader.workers.preparation import prepare_process

Info = tuple[int, int, AnyDataset, Callable[[int], object] | None, Plan]
"""Number of workers, base seed, dataset, ``worker_init_fn``, and the dataset's whole plan, of which
the device may do a part."""

_Contents = tuple[Any, ...]
"""The list of a folder's samples, or arrays of images (or byte ranges) and targets."""


def main(config: NativeWorkerConfig, descriptors: dict[str, Descriptor], info: Info) -> None:
    """Prepares the process as torch does, then serves as a native worker.

    If user code changes the dataset that the plan was compiled from, the worker reports that and
    ends.
    """
    fds: dict[str, Any] = {name: descriptor.fd for name, descriptor in descriptors.items()}
    config = replace(config, **fds)
    if prepare(config, info):
        native_worker.main(config)


def prepare(config: NativeWorkerConfig, info: Info) -> bool:
    """Prepares the process; returns whether the plan is still valid, and reports if it is not."""
    workers, base_seed, dataset, init, plan = info
    reason: messages.Message
    try:
        before = None if init is None else _samples(dataset, plan)
        prepare_process(config.worker, workers, base_seed, dataset, init)
        unchanged = init is None or _same(before, _samples(dataset, plan))
        reason = messages.DatasetChanged()
    except Exception as error:
        where = f"in DataLoader worker process {config.worker}"
        reason = messages.WorkerFailed(sample_errors.capture(error, where))
        unchanged = False
    if not unchanged:
        messages.send(config.message_fd, reason)
        _native.WorkerQueue(config.control_fd, config.data_fd, config.worker).wake_manager()
    return unchanged


def _samples(dataset: AnyDataset, plan: Plan) -> _Contents | None:
    """Returns a dataset's images and targets if ``plan`` is its whole plan, else ``None``."""
    compiled = compile_dataset(dataset, plan.decode, plan.strict)
    if not compiled.complete or compiled.plan != plan:
        return None
    if compiled.kind == "pixels":
        arrays = compiled.arrays()
        return arrays.images.copy(), arrays.targets.copy()
    if compiled.kind == "ranges":
        images, indices = compiled.ranged()
        ranges = images.byte_ranges()
        chosen = slice(None) if indices is None else indices.copy()
        # The arrays are read-only, so a changed one is a new object: no copy is needed.
        columns = (ranges.packed[chosen], ranges.nbytes[chosen], np.asarray(images.targets)[chosen])
        return (*columns, np.array(ranges.files))
    return (list(compiled.samples()),) if compiled.kind == "folder" else None


def _same(before: _Contents | None, after: _Contents | None) -> bool:
    if before is None or after is None or len(before) != len(after):
        return False
    if len(before) == 1:
        return bool(before == after)
    return all(map(np.array_equal, before, after))
