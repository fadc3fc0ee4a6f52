"""Datasets of encoded images in byte ranges of files: the base of all sources of shards."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch.utils.data import Dataset

from fusionloader.sources.byte_ranges import ByteRanges
from fusionloader.sources.range_reading import FileRange, read_range
from fusionloader.sources.url_reading import UrlFiles, read_url_range

if TYPE_CHECKING:
    from fusionloader.sources.remote_files import RemoteFiles

Transform = Callable[[Any], Any]


class SampleNames(Protocol):
    """Names samples in messages. Small, and pickled to workers; never raises."""

    def name(self, file: str, offset: int, item: int) -> str:
        """Returns a sample's name: ``train-003.tar: cats/5.jpg``.

        Args:
            file: path or URL of the sample's file.
            offset: of its first byte there.
            item: its number in the dataset.
        """


class OffsetNames:
    """Names samples by the place of their bytes: ``train-003.tar: byte 1536``."""

    def name(self, file: str, offset: int, item: int) -> str:
        """See ``SampleNames``."""
        return f"{os.path.basename(file)}: byte {offset}"


class EncodedImages(Dataset[Any]):
    """A map-style dataset of encoded images, each a range of bytes in a file or at a URL.

    ``torch.utils.data.DataLoader`` gets ``dataset[index]`` of it; ``FusionLoader`` takes its
    ranges, and native workers read them.

    Attributes:
        transform: of the images, ``None`` for PIL images.
        target_transform: of the targets.
        names: what messages call the samples.
        has_integers: whether all targets are integers.
    """

    def __init__(
        self,
        ranges: ByteRanges,
        targets: Sequence[Any] | npt.NDArray[Any],
        *,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        names: SampleNames | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Makes the dataset of ranges that were found.

        Args:
            ranges: of N samples.
            targets: N of them. Integers are kept as an int64 array, others as they are.
            transform: of an image.
            target_transform: of a target.
            names: what messages call the samples; by default their offsets.
            storage_options: fsspec's, where files are URLs.

        Raises:
            ValueError: there are not as many targets as ranges.
        """
        if len(ranges) != len(targets):
            raise ValueError(f"{len(ranges)} samples have {len(targets)} targets")
        self._ranges = ranges
        integers = _integers(targets)
        self.has_integers = integers is not None
        self._targets = targets if integers is None else integers
        self.transform = transform
        self.target_transform = target_transform
        self.names: SampleNames = OffsetNames() if names is None else names
        self.storage_options = dict(storage_options or {})

    @property
    def targets(self) -> Sequence[Any] | npt.NDArray[np.int64]:
        """The targets: a read-only int64 array, or the sequence that was given."""
        return self._targets

    def byte_ranges(self) -> ByteRanges:
        """Returns the range of every sample."""
        return self._ranges

    def __len__(self) -> int:
        return len(self._ranges)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        encoded, target = self.read_encoded(index)
        with Image.open(io.BytesIO(encoded)) as file:
            image: Any = file.convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def read_encoded(self, index: int) -> tuple[bytes, Any]:
        """Returns the encoded bytes of a sample, and its target before ``target_transform``.

        Raises:
            IndexError: the dataset has no such sample.
            ShardChanged: its file is not what it was when it was indexed.
            OSError: its file cannot be read.
        """
        number = self._number(index)
        where = self._ranges.at(number)
        target = self._targets[number]
        if self.has_integers:
            target = int(target)
        name = functools.partial(self.name, number)
        if self._ranges.are_remote:
            return read_url_range(where, self.storage_options, name), target
        return read_range(where, name), target

    def size_hint(self, index: int) -> int:
        """Returns the bytes of a sample's encoded image."""
        return int(self._ranges.nbytes[self._number(index)])

    def name(self, index: int) -> str:
        """Returns what messages call a sample: ``train-003.tar: cats/5.jpg``."""
        number = self._number(index)
        where: FileRange = self._ranges.at(number)
        return self.names.name(where.file, where.offset, number)

    def remote_files(self) -> RemoteFiles | None:
        """Returns what workers get the bytes through; ``None`` where files are local.

        Pickled into every worker. Its ``FileFetcher`` also has ``read``.
        """
        return UrlFiles(self.storage_options) if self._ranges.are_remote else None

    def announce(self, indices: Sequence[int]) -> None:
        """Is told of every mini-batch, in order, before workers ask for its samples.

        Called in the training process; does nothing here.
        """

    def _number(self, index: int) -> int:
        number = int(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"the dataset has {len(self)} samples and no index {index}")
        return number % len(self)


def _integers(targets: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """Returns targets as a read-only int64 array, ``None`` where they are not plain integers."""
    if isinstance(targets, np.ndarray):
        if targets.ndim != 1 or targets.dtype.kind not in "iu":
            return None
    elif len(targets) and set(map(type, targets)) != {int}:
        return None
    found = np.asarray(targets).astype(np.int64, copy=False).view()
    found.flags.writeable = False
    return found
