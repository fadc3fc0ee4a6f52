"""Images in tar archives of webdataset's format on object storage, read as a stream."""

from __future__ import annotations

import functools
import itertools
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fusionloader.cache.range_reading import FileRange, is_url
from fusionloader.cache.tiers.dataset_table import OFFSET_BITS
from fusionloader.data.sources.byte_ranges import ByteRanges
from fusionloader.data.sources.encoded_images import EncodedImages
from fusionloader.data.sources.ranged_samples import ShardTargets, joined
from fusionloader.data.sources.shards.shard_paths import expand_urls
from fusionloader.data.sources.shards.tar_index import TarIndex
from fusionloader.data.sources.shards.tar_members import ShardError
from fusionloader.data.sources.shards.tar_samples import MemberChoice, ShardSamples, group_samples
from fusionloader.data.sources.streams.order import ShuffleShape
from fusionloader.data.sources.streams.sampler import StreamSampler
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.data.sources.streams.shard_indexes import (
    IndexMode,
    cached_index_path,
    find_indexes,
)
from fusionloader.data.sources.url_errors import UrlUnreadable, is_worth_another_try
from fusionloader.scheduler.retries import Backoff
from fusionloader.system.amounts import counted, mib, parse_bytes
from fusionloader.system.user_warnings import warn_user

_INTERLEAVE = 8
_RUN_BYTES = 2 << 20  # target size of a run, whose samples one request reads
_FEWEST_IN_RUN, _MOST_IN_RUN = 16, 1024
_RUNS_IN_WINDOW = 4  # at least

Transform = Callable[[Any], Any]


class TarStream(EncodedImages):
    """A map-style dataset of the images in tar archives at URLs.

    A process of the loader reads the sampler's next samples ahead. It reads many samples with one
    request if their order allows it, as the order of ``sampler()`` does.

    Attributes:
        urls: URLs of the shards, in the order in which samples are numbered.
        shard_counts: number of samples of each shard, int64.
        read_settings: settings of the process that reads.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        shuffle_window: int = 4096,
        image: str = "jpg;jpeg;png;webp",
        target: str | None = "cls",
        storage_options: dict[str, Any] | None = None,
        index: IndexMode = "auto",
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        read_ahead: int | str = "512MiB",
        requests_in_flight: int = 16,
        retries: int = 5,
        timeout: float = 30.0,
        hedge: bool = True,
    ) -> None:
        """Finds or makes the indexes of all shards; the images are read later.

        Args:
            urls: URLs of the shards, with braces: ``"s3://bucket/train-{000..146}.tar"``.
            shuffle_window: number of places within which ``sampler()`` displaces a sample.
            image: extensions of images, in order of preference.
            target: extension of targets: integers, text, or JSON; ``None`` for the target -1.
            storage_options: options of fsspec's file system: credentials, endpoints.
            index: ``"auto"`` makes missing indexes; ``"beside"`` uses only those beside the shards.
            transform: transform of an image.
            target_transform: transform of a target.
            read_ahead: largest number of bytes of samples that are requested or held before
                workers take them; or text such as ``"512MiB"``.
            requests_in_flight: largest number of concurrent requests.
            retries: number of attempts after the first one.
            timeout: timeout of an attempt, in seconds.
            hedge: whether a late request is sent a second time.

        Raises:
            ValueError: an argument is out of range.
            UrlUnreadable: a shard or its index cannot be read.
            ShardError: a shard or its index is damaged, or its members form no samples.
        """
        self.urls: list[str] = expand_urls(urls)
        if (local := next((url for url in self.urls if not is_url(url)), None)) is not None:
            raise ValueError(
                f"{local!r} is no URL: a stream is read from s3://, https:// or others"
            )
        if shuffle_window < 1:
            raise ValueError(f"shuffle_window should be at least 1 sample, not {shuffle_window}")
        if index not in ("auto", "beside"):
            raise ValueError(f'index should be "auto" or "beside", not {index!r}')
        choice = MemberChoice.of(image, target)
        settings = ReadSettings(
            storage_options=dict(storage_options or {}),
            ahead_bytes=parse_bytes(read_ahead),
            in_flight=requests_in_flight,
            retries=retries,
            timeout=timeout,
            hedge=hedge,
            window=shuffle_window,
        )
        found = find_indexes(self.urls, settings, index, choice)
        collected = _Collected.of(self.urls, found, choice)
        self.read_settings: ReadSettings = settings
        self.shard_counts: npt.NDArray[np.int64] = collected.counts
        super().__init__(
            collected.ranges,
            collected.targets,
            transform=transform,
            target_transform=target_transform,
            names=TarNames(),
            storage_options=storage_options,
        )
        self._check_window(shuffle_window)

    def read_url(self, where: FileRange, name: Callable[[], str]) -> bytes:
        """Returns the bytes of a range by a request of its own, with retries.

        Raises:
            UrlUnreadable: all attempts failed.
        """
        backoff = Backoff(self.read_settings.retries)
        for failed in itertools.count(1):
            try:
                return super().read_url(where, name)
            except UrlUnreadable as error:
                wait = backoff.wait(failed, random.random())
                if wait is None or not is_worth_another_try(error.__cause__ or error):
                    raise
                time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def describe(self) -> str:
        archives = counted(len(self.urls), "archive")
        return f"{counted(len(self), 'member')} of {archives} at URLs, by their indexes"

    def sampler(
        self,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> StreamSampler:
        """Returns a sampler with an order that few requests can read.

        Args:
            seed: seed of the order, together with the epoch's number (``set_epoch``).
            num_replicas: number of ranks; by default that of ``torch.distributed`` or ``torchrun``,
                or 1.
            rank: rank of this process.
            shuffle: whether to shuffle; otherwise the order is that of the shards.
            drop_last: whether to leave out up to ``num_replicas - 1`` samples, so that all ranks
                have the same number.
        """
        return StreamSampler(
            self.shard_counts,
            self._shape() if shuffle else None,
            seed=seed,
            num_replicas=num_replicas,
            rank=rank,
            drop_last=drop_last,
        )

    def _shape(self) -> ShuffleShape:
        window = self.read_settings.window
        most = max(1, min(_MOST_IN_RUN, window // _RUNS_IN_WINDOW))
        run = min(most, max(_FEWEST_IN_RUN, int(_RUN_BYTES / self._mean_bytes())))
        return ShuffleShape(window, run, _INTERLEAVE)

    def _mean_bytes(self) -> float:
        return float(self.byte_ranges().nbytes.mean(dtype=np.float64))

    def _check_window(self, window: int) -> None:
        held = int(min(window, len(self)) * self._mean_bytes() / 2)
        if held > self.read_settings.ahead_bytes:
            warn_user(
                f"shuffle_window={window} keeps about {mib(held)} of samples waiting, and "
                f"read_ahead is {mib(self.read_settings.ahead_bytes)}: samples are then read one "
                "by one. Make read_ahead larger, or shuffle_window smaller"
            )


class TarNames:
    """Names samples by the indexes in the user's cache: ``train-003.tar: cats/5.jpg``."""

    def name(self, file: str, offset: int, item: int) -> str:
        shard = os.path.basename(file)
        index = _read_cached_index(file)
        found = None if index is None else index.name_at(offset)
        return f"{shard}: byte {offset}" if found is None else f"{shard}: {found}"


@functools.lru_cache(maxsize=4)
def _read_cached_index(url: str) -> TarIndex | None:
    try:
        path = cached_index_path(url)
        return TarIndex.from_bytes(path.read_bytes(), str(path))
    except (OSError, ShardError):
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Collected:
    """The samples of all shards, one shard after the other."""

    ranges: ByteRanges
    targets: ShardTargets
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, urls: list[str], indexes: list[TarIndex], choice: MemberChoice) -> _Collected:
        """Collects the samples of indexes. Each index is freed before the next, to limit memory."""
        packed, nbytes, targets, stamps = [], [], [], []
        for number, url in enumerate(urls):
            index, indexes[number] = indexes[number], None  # type: ignore[call-overload]
            samples = group_samples(index.members(), choice, url)
            order = np.argsort(samples.offset, kind="stable")
            packed.append((np.uint64(number) << np.uint64(OFFSET_BITS)) | samples.offset[order])
            nbytes.append(samples.nbytes[order])
            targets.append(_ordered(samples, order))
            stamps.append((index.shard_bytes, index.shard_version))
        ranges = ByteRanges.of_packed(
            urls, np.concatenate(packed), np.concatenate(nbytes), stamps=np.array(stamps, np.int64)
        )
        counts = np.array([len(part) for part in packed], np.int64)
        return cls(ranges, joined(targets), counts)


def _ordered(samples: ShardSamples, order: npt.NDArray[np.int64]) -> ShardTargets:
    if isinstance(samples.targets, np.ndarray):
        return samples.targets[order]
    return [samples.targets[place] for place in order.tolist()]
