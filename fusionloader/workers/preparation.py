"""The set-up of a worker process, as in torch: seeds, worker info, ``worker_init_fn``."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import _utils as torch_utils

from fusionloader.options.aliases import AnyDataset
from fusionloader.transforms.executors.global_generators import (
    generator_states,
    set_generator_states,
)
from fusionloader.transforms.executors.python import Seeding


def prepare_process(
    worker: int,
    workers: int,
    base_seed: int,
    dataset: AnyDataset,
    worker_init_fn: Callable[[int], object] | None,
) -> Seeding:
    """Seeds, sets what ``get_worker_info`` returns and calls ``worker_init_fn``, as torch does.

    Returns the generators that are to be seeded for every sample: all but those that
    ``worker_init_fn`` has seeded itself. A seed derived from the worker's seed, as in PyTorch's
    notes on reproducibility, does not count: seeding every sample has the same purpose, and also
    works if several workers process one mini-batch.
    """
    torch.set_num_threads(1)
    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(
        torch_utils.worker._generate_state(  # type: ignore[no-untyped-call]
            base_seed, worker
        )
    )
    torch_utils.worker._worker_info = torch_utils.worker.WorkerInfo(
        id=worker, num_workers=workers, seed=seed, dataset=dataset
    )
    if worker_init_fn is None:
        return Seeding()
    of_python, of_numpy = random.Random(), np.random.RandomState()
    of_python.setstate(random.getstate())
    of_numpy.set_state(np.random.get_state())
    worker_init_fn(worker)
    return Seeding(
        python=not _is_seeded_anew(_python_words, random, of_python, random.Random(seed % 2**32)),
        torch=torch.initial_seed() == seed,
        numpy=not _is_seeded_anew(
            _numpy_words, np.random, of_numpy, np.random.RandomState(seed % 2**32)
        ),
    )


class ProcessState:
    """Global state that user code reads, saved and restored in a process of several loaders.

    It is the result of ``get_worker_info`` and, with ``generators``, the states of the global
    generators.
    """

    def __init__(self, generators: bool) -> None:
        self._generators = generators
        self.save()

    def save(self) -> None:
        self._info = torch_utils.worker._worker_info
        if self._generators:
            self._states = generator_states()

    def restore(self) -> None:
        torch_utils.worker._worker_info = self._info
        if self._generators:
            set_generator_states(self._states)


def _python_words(generator: Any) -> bytes:
    return bytes(str(generator.getstate()[1][:-1]), "ascii")


def _numpy_words(generator: Any) -> bytes:
    words: bytes = generator.get_state()[1].tobytes()
    return words


def _is_seeded_anew(words: Callable[[Any], bytes], now: Any, before: Any, of_notes: Any) -> bool:
    """Whether ``worker_init_fn`` has seeded a generator.

    ``False`` if the state is that of ``before``, or of a generator with the seed of PyTorch's
    notes, or that of either after one draw.
    """
    found = words(now)
    for generator in (before, of_notes):
        if found == words(generator):
            return False
        generator.random() if isinstance(generator, random.Random) else generator.random_sample()
        if found == words(generator):
            return False
    return True
