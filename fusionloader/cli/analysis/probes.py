"""Loaders like the user's over a few of its mini-batches, again and again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from fusionloader.loader import FusionLoader
from fusionloader.options.aliases import AnyLoader, Index
from fusionloader.options.loader_options import FusionOptions
from fusionloader.transforms.executors.python import find_length

MiniBatch = list[Index]

_TORCH = (
    "dataset",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "in_order",
)
# A probe goes through other batches than the jobs that share with the loader.
_NOT_OWN = ("num_workers", "share")
_OWN = tuple(field.name for field in fields(FusionOptions) if field.name not in _NOT_OWN)


class CyclicBatches:
    """A batch sampler without end; ``before`` is told of each mini-batch that it hands out."""

    def __init__(
        self, mini_batches: Sequence[MiniBatch], before: Callable[[MiniBatch], None] | None = None
    ) -> None:
        self._mini_batches, self._before = mini_batches, before

    def __iter__(self) -> Iterator[MiniBatch]:
        for mini_batch in itertools.cycle(self._mini_batches):
            if self._before is not None:
                self._before(mini_batch)
            yield mini_batch


def first_mini_batches(loader: AnyLoader, samples: int) -> list[MiniBatch]:
    """Returns mini-batches as the loader's sampler gives them, until they have enough samples.

    Full ones, as far as there are any. Empty for an ``IterableDataset``, which has no indices.
    """
    if isinstance(loader.dataset, IterableDataset):
        return []
    sampled: Iterable[Any] = loader.batch_sampler or loader.sampler
    found: list[MiniBatch] = []
    for each in sampled:
        mini_batch = list(each) if loader.batch_sampler is not None else [each]
        if found and len(mini_batch) < len(found[0]):
            break
        found.append(mini_batch)
        if len(found) * len(found[0]) >= samples:
            break
    return found


def like(
    loader: AnyLoader,
    batches: Iterable[MiniBatch] | None,
    *,
    kind: type[AnyLoader] | None = None,
    **changes: Any,
) -> AnyLoader:
    """Returns a loader with the arguments of ``loader``, over other mini-batches.

    Stores of decoded images and indexes are left out unless ``changes`` have them: the few samples
    of a probe would all be in there.
    """
    kind = kind or (FusionLoader if isinstance(loader, FusionLoader) else DataLoader)
    arguments = {name: getattr(loader, name) for name in _TORCH}
    if kind is FusionLoader and isinstance(loader, FusionLoader):
        arguments |= {name: getattr(loader, name) for name in _OWN}
        arguments |= {"cache": None, "jpeg_index": None, "pool": None}
    if batches is None:
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        arguments |= {"batch_size": None, "sampler": (each for batch in batches for each in batch)}
    else:
        arguments["batch_sampler"] = batches
    arguments |= changes
    if arguments["num_workers"] == 0:
        arguments |= {"prefetch_factor": None, "multiprocessing_context": None, "timeout": 0}
        arguments.pop("worker_init_fn")
    return kind(**arguments)


def forever(loader: AnyLoader) -> Generator[Any, None, None]:
    """Yields batches, beginning anew where a stream ends."""
    while True:
        found = False
        for batch in loader:
            found = True
            yield batch
        if not found:
            return


def end(loader: AnyLoader) -> None:
    """Ends a loader's workers now; for torch's loader this needs a private attribute."""
    if isinstance(loader, FusionLoader):
        loader.close()
    else:
        loader._iterator = None


def steps_of(loader: AnyLoader) -> int | None:
    """Returns the mini-batches of an epoch; ``None`` for a stream without length."""
    with suppress(TypeError, NotImplementedError):
        return len(loader)
    return None


def samples_of(loader: AnyLoader) -> int | None:
    """Returns the samples of the dataset; ``None`` where it has no length."""
    return find_length(loader.dataset) or None
