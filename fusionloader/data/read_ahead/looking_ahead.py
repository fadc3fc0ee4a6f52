"""Draws mini-batches ahead of their publication and announces their samples for reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch.utils.data import SequentialSampler

from fusionloader.cache.tiers.store_handles import StoreHandles
from fusionloader.data.read_ahead.read_ahead_process import ReadAheadProcess
from fusionloader.data.sources.encoded_images import EncodedImages
from fusionloader.data.sources.streams.sampler import StreamSampler
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.options.aliases import Index

if TYPE_CHECKING:
    from fusionloader.data.epochs.sampling import SampledBatch


def read_settings(dataset: EncodedImages) -> ReadSettings | None:
    """Returns the read settings of a dataset of URLs; ``None`` if it overrides ``remote_files``."""
    if type(dataset).remote_files is not EncodedImages.remote_files:
        return None
    settings = getattr(dataset, "read_settings", None)
    if isinstance(settings, ReadSettings):
        return settings
    return ReadSettings(storage_options=dataset.storage_options)


def explain_reading(
    dataset: EncodedImages, is_whole: bool, sampler: object, why_one_by_one: str
) -> str:
    """Returns the line of ``explain()`` about reading samples from URLs.

    Args:
        dataset: dataset of samples at URLs.
        is_whole: whether the loader has this dataset, and not a part of it.
        sampler: the sampler of single samples.
        why_one_by_one: why no process reads ahead; empty if one does.
    """
    if why_one_by_one:
        return f"URLs are read with a request for each sample: {why_one_by_one}"
    if read_settings(dataset) is None:
        return "URLs are read by the dataset's own remote_files()"
    text = "URLs are read ahead by a process, in the sampler's order"
    has_sampler = is_whole and callable(getattr(dataset, "sampler", None))
    if has_sampler and not isinstance(sampler, (StreamSampler, SequentialSampler)):
        text += "; with sampler=dataset.sampler() neighbours come with one request"
    return text


class WantedRange:
    """Finds the samples of mini-batches that are in no cache and have to be read."""

    def __init__(
        self, sizes: npt.NDArray[np.uint32], item_of: Callable[[Index], int], stores: StoreHandles
    ) -> None:
        self._sizes = sizes.data
        self._item_of = item_of
        opened = stores.open() if stores.fds else None
        views = {} if opened is None else opened.views
        self._stores = [view for name, view in views.items() if name != "index"]

    def find(self, batch: SampledBatch) -> tuple[list[int], int]:
        """Returns the item numbers of these samples, and their bytes in all."""
        items = [
            item
            for item in map(self._item_of, batch.indices)
            if item >= 0 and not any(store.holds(item) for store in self._stores)
        ]
        return items, sum(self._sizes[item] for item in items)


def looking_ahead(
    batches: Iterator[SampledBatch], reader: ReadAheadProcess, wanted: WantedRange, patience: int
) -> Iterator[SampledBatch]:
    """Yields mini-batches, and announces later ones to the process that reads URLs.

    How far the sampler is drawn ahead depends on bytes and samples alone and not on any speed, so
    it is the same in every run.

    Args:
        batches: mini-batches of the pass.
        reader: process that reads URLs.
        wanted: finds the samples of a mini-batch that have to be read.
        patience: number of mini-batches after which a yielded one is finished: samples of it that
            no worker has requested by then are dropped.
    """
    reader.begin()
    drawn: deque[tuple[SampledBatch, list[int], int]] = deque()
    over: deque[list[int]] = deque()
    nbytes = samples = 0
    least_bytes, least_samples = reader.settings.ahead_bytes, 2 * reader.settings.window
    ended = begun = False
    while True:
        while not ended and (nbytes < least_bytes or samples < least_samples):
            sampled = next(batches, None)
            if sampled is None:
                ended = True
                break
            items, size = wanted.find(sampled)
            reader.announce(items)
            drawn.append((sampled, items, size))
            nbytes += size
            samples += len(sampled.indices)
        if not begun:
            begun = True
            reader.go()
        if not drawn:
            return
        sampled, items, size = drawn.popleft()
        nbytes -= size
        samples -= len(sampled.indices)
        reader.published()
        over.append(items)
        if len(over) > patience:
            reader.forget(over.popleft())
        yield sampled
