"""The encoded images of a dataset as ranges of bytes in files or at URLs."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fusionloader.cache.range_reading import FileRange, is_url
from fusionloader.cache.tiers.dataset_table import OFFSET_BITS

MOST_FILES = 1 << (64 - OFFSET_BITS)

_CHECKED_AT_ONCE = 1 << 18  # ranges checked at a time, to limit memory

_OFFSET_MASK = np.uint64((1 << OFFSET_BITS) - 1)

Integers = Sequence[int] | npt.NDArray[np.integer]
Packed = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.uint32]


class ByteRanges:
    """The range of each sample's encoded image. Read-only.

    A range takes 12 bytes: ``file`` and ``offset`` share 64 bits.

    Attributes:
        files: paths, all of them local, or URLs that fsspec knows (``s3://``, ``https://``, ...).
        packed: uint64 array of N: ``file << 40 | offset``.
        nbytes: uint32 array of N, bytes of each range.
        stamps: int64 array, a row for each file: its size in bytes and its time of modification in
            ns, when the ranges were found. For URLs size and version as the server reports them, 0
            if it does not.
    """

    __slots__ = ("files", "nbytes", "packed", "stamps")

    files: tuple[str, ...]
    packed: Packed
    nbytes: Lengths
    stamps: npt.NDArray[np.int64]

    def __init__(
        self,
        files: Sequence[str | os.PathLike[str]],
        file: Integers,
        offset: Integers,
        nbytes: Integers,
        *,
        stamps: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Checks and packs the ranges.

        Args:
            files: local paths, or URLs.
            file: N numbers of files, from 0.
            offset: N offsets of first bytes.
            nbytes: N lengths, at least 1.
            stamps: stamps of the files, see above. By default those of local files are read.

        Raises:
            ValueError: the arrays do not fit together, a number is out of range, or a range ends
                beyond its file.
            FileNotFoundError: a local file does not exist.
        """
        numbers = _whole(file, "file")
        starts = _whole(offset, "offset")
        lengths = _whole(nbytes, "nbytes")
        if not len(numbers) == len(starts) == len(lengths):
            raise ValueError(
                f"a sample has one file, offset and nbytes, but there are {len(numbers)}, "
                f"{len(starts)} and {len(lengths)} of them"
            )
        _check_most(numbers, len(files), "file", f"there are {len(files)} files")
        _check_most(starts, 1 << OFFSET_BITS, "offset", "files have at most 1 TiB")
        _check_most(lengths, 1 << 32, "nbytes", "images have less than 4 GiB")
        packed = numbers.astype(np.uint64)
        packed <<= np.uint64(OFFSET_BITS)
        packed |= starts.astype(np.uint64, copy=False)
        self._fill(files, packed, lengths.astype(np.uint32), stamps)

    @classmethod
    def of_packed(
        cls,
        files: Sequence[str | os.PathLike[str]],
        packed: Packed,
        nbytes: Lengths,
        *,
        stamps: npt.NDArray[np.int64] | None = None,
    ) -> ByteRanges:
        """Returns the ranges in packed arrays, which are not copied.

        Raises:
            ValueError: the arrays do not fit together, a number is out of range, or a range ends
                beyond its file.
            FileNotFoundError: a local file does not exist.
        """
        made = cls.__new__(cls)
        if packed.dtype != np.uint64 or nbytes.dtype != np.uint32 or packed.shape != nbytes.shape:
            raise ValueError(
                f"packed ranges are uint64 and uint32 arrays of one length, not {packed.dtype} "
                f"{packed.shape} and {nbytes.dtype} {nbytes.shape}"
            )
        if len(packed) and (most := int(packed.max()) >> OFFSET_BITS) >= len(files):
            raise ValueError(f"file {most} of a range, but there are {len(files)} files")
        made._fill(files, packed, nbytes, stamps)
        return made

    def _fill(
        self,
        files: Sequence[str | os.PathLike[str]],
        packed: Packed,
        nbytes: Lengths,
        stamps: npt.NDArray[np.int64] | None,
    ) -> None:
        names = tuple(os.fspath(name) for name in files)
        urls = sum(map(is_url, names))
        if urls not in (0, len(names)):
            raise ValueError(
                f"{urls} of {len(names)} files are URLs: a dataset is local or not, make two and "
                "a ConcatDataset of them"
            )
        if len(names) > MOST_FILES:
            raise ValueError(
                f"{len(names)} files, the most are {MOST_FILES}: write them as shards of many "
                "images, such as tar archives"
            )
        if len(nbytes) and int(nbytes.min()) == 0:
            raise ValueError(f"sample {int(nbytes.argmin())} has no bytes (nbytes 0)")
        if stamps is None:
            stamps = np.zeros((len(names), 2), np.int64) if urls else _read_stamps(names)
        if stamps.shape != (len(names), 2) or stamps.dtype != np.int64:
            raise ValueError(f"stamps are int64 of shape ({len(names)}, 2), not {stamps.shape}")
        _check_ends(names, packed, nbytes, stamps)
        object.__setattr__(self, "files", names)
        object.__setattr__(self, "stamps", _read_only(stamps))
        self.hold(packed, nbytes)

    def hold(self, packed: Packed, nbytes: Lengths) -> None:
        """Replaces the arrays by equal ones, such as copies in shared memory."""
        object.__setattr__(self, "packed", _read_only(packed))
        object.__setattr__(self, "nbytes", _read_only(nbytes))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ByteRanges are read-only: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"ByteRanges are read-only: {name} cannot be deleted")

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self.files, self.packed, self.nbytes, self.stamps)

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def file(self) -> npt.NDArray[np.uint32]:
        """File number of each sample, as a new uint32 array."""
        return (self.packed >> np.uint64(OFFSET_BITS)).astype(np.uint32)

    @property
    def offset(self) -> npt.NDArray[np.uint64]:
        """Offset of each sample's first byte, as a new uint64 array."""
        return self.packed & _OFFSET_MASK

    @property
    def are_remote(self) -> bool:
        """Whether the files are URLs."""
        return bool(self.files) and is_url(self.files[0])

    def at(self, index: int) -> FileRange:
        """Returns the range of one sample, with the stamp of its file."""
        packed = int(self.packed[index])
        file = packed >> OFFSET_BITS
        size, mtime_ns = self.stamps[file].tolist()
        offset = packed & int(_OFFSET_MASK)
        return FileRange(self.files[file], offset, int(self.nbytes[index]), size, mtime_ns)

    def of(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> ByteRanges:
        """Returns the ranges of some samples, with the same files."""
        chosen = np.asarray(indices, dtype=np.int64)
        packed, nbytes = self.packed[chosen], self.nbytes[chosen]
        return ByteRanges.of_packed(self.files, packed, nbytes, stamps=self.stamps)

    def __repr__(self) -> str:
        return f"ByteRanges({len(self)} samples in {len(self.files)} files)"


def _unpickled(
    files: tuple[str, ...], packed: Packed, nbytes: Lengths, stamps: npt.NDArray[np.int64]
) -> ByteRanges:
    return ByteRanges.of_packed(files, packed, nbytes, stamps=stamps)


def _read_only(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _whole(values: Integers, name: str) -> npt.NDArray[np.integer]:
    found = np.asarray(values)
    if not found.size:
        found = found.astype(np.int64).reshape(-1)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(
            f"{name} is one integer per sample, not {found.dtype} of shape {found.shape}"
        )
    return found


def _check_most(values: npt.NDArray[np.integer], limit: int, name: str, why: str) -> None:
    if not len(values):
        return
    for found in (values.argmin(), values.argmax()):
        if not 0 <= int(values[found]) < limit:
            raise ValueError(f"{name} {int(values[found])} of sample {int(found)}: {why}")


def _check_ends(
    files: Sequence[str], packed: Packed, nbytes: Lengths, stamps: npt.NDArray[np.int64]
) -> None:
    """Raises ValueError if a range ends beyond its file, whose size may be unknown for URLs."""
    sizes = stamps[:, 0].copy()
    if files and is_url(files[0]):
        sizes[sizes == 0] = np.iinfo(np.int64).max
    for begin in range(0, len(packed), _CHECKED_AT_ONCE):
        part = packed[begin : begin + _CHECKED_AT_ONCE]
        file = (part >> np.uint64(OFFSET_BITS)).astype(np.int64)
        ends = (part & _OFFSET_MASK).astype(np.int64) + nbytes[begin : begin + _CHECKED_AT_ONCE]
        if (beyond := ends > sizes[file]).any():
            at = int(beyond.argmax())
            raise ValueError(
                f"sample {begin + at} ends at byte {ends[at]} of {files[file[at]]!r}, which has "
                f"{sizes[file[at]]} bytes: the file was cut off or replaced, or its index is of "
                "another one; index it again"
            )


def _read_stamps(files: Sequence[str]) -> npt.NDArray[np.int64]:
    stamps = np.empty((len(files), 2), np.int64)
    for number, name in enumerate(files):
        info = os.stat(name)
        if not stat.S_ISREG(info.st_mode):
            raise ValueError(f"{name!r} is no regular file")
        stamps[number] = info.st_size, info.st_mtime_ns
    return stamps
