"""Base of all datasets of shards: encoded images in byte ranges of files."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from PIL import Image
from torch.utils.data import Dataset

from fusionloader.cache.range_reading import FileRange, read_range
from fusionloader.data.sources.byte_ranges import ByteRanges
from fusionloader.data.sources.ranged_samples import RangedSamples, Targets
from fusionloader.data.sources.sample_names import OffsetNames, SampleNames
from fusionloader.data.sources.url_reading import UrlFiles, read_url_range
from fusionloader.system.amounts import counted

if TYPE_CHECKING:
    from fusionloader.cache.remote_files import RemoteFiles

Transform = Callable[[Any], Any]


class EncodedImages(Dataset[Any]):
    """A map-style dataset of encoded images, each a range of bytes in a file or at a URL.

    ``torch.utils.data.DataLoader`` reads samples by ``dataset[index]``. ``FusionLoader`` passes the
    ranges to native workers, which read them.

    Attributes:
        transform: transform of the images; ``None`` for PIL images.
        target_transform: transform of the targets.
        names: names of the samples in messages.
        ranged: the ranges and the targets.
    """

    def __init__(
        self,
        ranges: ByteRanges,
        targets: Targets,
        *,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        names: SampleNames | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Makes a dataset of ranges and targets.

        Args:
            ranges: ranges of N samples.
            targets: N targets. Integers are stored as an int64 array, others as given.
            transform: transform of an image.
            target_transform: transform of a target.
            names: names of the samples in messages; by default their offsets.
            storage_options: options of fsspec's file system, if files are URLs.

        Raises:
            ValueError: the numbers of targets and ranges differ.
        """
        self.ranged: RangedSamples = RangedSamples(ranges, targets)
        self.transform: Transform | None = transform
        self.target_transform: Transform | None = target_transform
        self.names: SampleNames = OffsetNames() if names is None else names
        self.storage_options: dict[str, Any] = dict(storage_options or {})

    @property
    def targets(self) -> Targets:
        """The targets: a read-only int64 array, or the sequence that was given."""
        return self.ranged.targets

    @targets.setter
    def targets(self, targets: Targets) -> None:
        self.ranged = RangedSamples(self.ranged.ranges, targets)

    def byte_ranges(self) -> ByteRanges:
        """Returns the range of every sample."""
        return self.ranged.ranges

    def __len__(self) -> int:
        return len(self.ranged.ranges)

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
            IndexError: the index is out of range.
            ShardChanged: the file has changed since it was indexed.
            OSError: the file cannot be read.
        """
        number = self._number(index)
        where = self.ranged.ranges.at(number)
        target = self.ranged.targets[number]
        if self.ranged.has_integers:
            target = int(target)
        name = functools.partial(self.name, number)
        if self.ranged.ranges.are_remote:
            return self.read_url(where, name), target
        return read_range(where, name), target

    def read_url(self, where: FileRange, name: Callable[[], str]) -> bytes:
        """Returns the bytes of a range of a URL. Called if no process reads ahead.

        Raises:
            UrlUnreadable: the read failed.
        """
        return read_url_range(where, self.storage_options, name)

    def size_hint(self, index: int) -> int:
        """Returns the size of a sample's encoded image, in bytes."""
        return int(self.ranged.ranges.nbytes[self._number(index)])

    def name(self, index: int) -> str:
        """Returns a sample's name in messages, such as ``train-003.tar: cats/5.jpg``."""
        number = self._number(index)
        where = self.ranged.ranges.at(number)
        return self.names.name(where.file, where.offset, number)

    def describe(self) -> str:
        """Returns number and place of the samples for ``explain()``: ``"12 ranges of 3 files"``."""
        ranges = self.ranged.ranges
        files = counted(len(ranges.files), "URL" if ranges.are_remote else "file")
        return f"{counted(len(ranges), 'range')} of {files}"

    def remote_files(self) -> RemoteFiles | None:
        """Returns the workers' access to the URLs; ``None`` if files are local.

        It is pickled into every worker. Its ``FileFetcher`` must also have ``read``.
        """
        return UrlFiles(self.storage_options) if self.ranged.ranges.are_remote else None

    def _number(self, index: int) -> int:
        number = int(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"the dataset has {len(self)} samples and no index {index}")
        return number % len(self)
