"""The bytes of files behind samples: where they are, and whether the file cache holds them."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.system.amounts import parse_bytes

_CHUNK = 1 << 20
_JPEG = b"\xff\xd8\xff"  # the first bytes of one


class FilePart(NamedTuple):
    """Bytes of a file that a sample takes: all of them, or a range.

    Attributes:
        path: path of the file.
        offset: offset of the first byte.
        nbytes: how many there are.
    """

    path: str
    offset: int
    nbytes: int

    @classmethod
    def whole(cls, path: str) -> FilePart:
        """Returns all of a file."""
        return cls(path, 0, os.path.getsize(path))


@dataclass(frozen=True, slots=True)
class FileCacheLimit:
    """How much of a dataset's files the file cache holds.

    Attributes:
        nbytes: bytes of files; ``None`` where a share is given.
        share: fraction of the files, 0 to 1.
    """

    nbytes: int | None = None
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> FileCacheLimit:
        """Returns the limit that is written as ``"30GiB"``, ``"35%"`` or ``"0"``.

        Raises:
            ValueError: it is neither an amount of memory nor a percentage from 0 to 100.
        """
        if text != "0" and not text.endswith("%"):
            return cls(nbytes=parse_bytes(text))
        share = float(text.removesuffix("%")) / 100
        if not 0 <= share <= 1:
            raise ValueError(f"a file cache should hold 0 to 100% of the files, not {text}")
        return cls(share=share)

    def share_of(self, nbytes: float) -> float:
        """Returns the fraction, 0 to 1, of a dataset with so many bytes of files."""
        return self.share if self.nbytes is None else min(1.0, self.nbytes / max(nbytes, 1.0))

    def __str__(self) -> str:
        return f"{self.share:.0%}" if self.nbytes is None else f"{self.nbytes / (1 << 30):.4g}GiB"


@dataclass(slots=True)
class _Opened:
    """Files opened for reading while it is active; audit hooks cannot be removed."""

    paths: list[str] | None = None
    installed: bool = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self.paths is None:
            return
        path, mode = arguments[0], arguments[1]
        if isinstance(path, (str, bytes)) and not any(c in (mode or "r") for c in "wax+"):
            self.paths.append(os.fsdecode(path))


_opened = _Opened()


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    if not _opened.installed:
        sys.addaudithook(_opened.hear)
        _opened.installed = True
    paths: list[str] = []
    _opened.paths = paths
    try:
        yield paths
    finally:
        _opened.paths = None


def parts_of(dataset: Any, indices: Sequence[Any]) -> dict[Any, list[FilePart]]:
    """Returns what each sample takes of files; nothing for samples in memory or at URLs.

    Of datasets other than image folders and ranges of files, these are the whole files that Python
    opens in ``dataset[index]``. Files that native code opens (OpenCV, LMDB) are not seen.
    """
    compiled = compile_dataset(dataset)
    if compiled.kind == "folder":
        samples = compiled.samples()
        return {index: [FilePart.whole(os.fspath(samples[index][0]))] for index in indices}
    if compiled.kind == "ranges" and not compiled.is_remote:
        images, chosen = compiled.ranged()
        ranges = images.byte_ranges()
        at = [ranges.at(int(index if chosen is None else chosen[index])) for index in indices]
        parts = [[FilePart(where.file, where.offset, where.nbytes)] for where in at]
        return dict(zip(indices, parts, strict=True))
    if compiled.kind == "pixels" or compiled.is_remote:
        return {index: [] for index in indices}
    found = {}
    with torch.random.fork_rng(devices=[]):
        for index in indices:
            with _listening() as paths:
                dataset[index]
            found[index] = [FilePart.whole(path) for path in dict.fromkeys(paths) if _is_file(path)]
    return found


def outside_cache(indices: Sequence[Any], share: float) -> set[Any]:
    """Returns the samples that a file cache with a share of all has not, evenly among them."""
    outside = 1 - share
    return {
        index
        for number, index in enumerate(indices)
        if int((number + 1) * outside + 1e-9) > int(number * outside + 1e-9)
    }


def sizes_of(parts: Mapping[Any, Sequence[FilePart]]) -> dict[Any, int]:
    """Returns the bytes that each sample takes of files."""
    return {index: sum(part.nbytes for part in each) for index, each in parts.items()}


def is_jpeg(part: FilePart) -> bool:
    """Whether the bytes are those of a JPEG, by their first ones."""
    with open(part.path, "rb") as file:
        file.seek(part.offset)
        return file.read(len(_JPEG)) == _JPEG


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def drop(part: FilePart) -> bool | None:
    """Asks the kernel to forget the pages of a part; returns whether it has.

    The rest of the file is forgotten with it where the kernel keeps them as one (large folios).
    ``None`` where the file system does not tell, as tmpfs, whose files are memory. No permission
    is needed beyond that to read the file, but pages that another process has mapped stay.
    """
    if not part.nbytes:
        return True
    descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
    begin = part.offset - part.offset % mmap.PAGESIZE
    end = -(-(part.offset + part.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        os.posix_fadvise(descriptor, begin, end - begin, os.POSIX_FADV_DONTNEED)
        if has_page(descriptor, part.offset) is False:
            return True
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        found = has_page(descriptor, part.offset)
        return None if found is None else not found
    finally:
        os.close(descriptor)


def has_page(descriptor: int, offset: int) -> bool | None:
    """Whether the byte at an offset is in the file cache; ``None`` where that cannot be told."""
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@dataclass(frozen=True, slots=True)
class ReadRates:
    """How fast files, or their parts, are read, by themselves.

    Attributes:
        mean_bytes: mean size of a part.
        memory: bytes a second from the file cache, one reader.
        storage: bytes a second from storage, many readers; ``None`` where the cache stays.
        latency: seconds until the first byte of a part comes from storage, one reader.
        dropped: the share of the parts that the file cache forgot.
        note: what is to be known about these figures; empty where nothing is.
    """

    mean_bytes: float
    memory: float
    storage: float | None
    latency: float
    dropped: float
    note: str = field(default="")


def read_rates(parts: Sequence[FilePart], readers: int) -> ReadRates:
    """Reads parts of files from the file cache and from storage, as far as that can be told apart.

    Raises:
        OSError: a file cannot be read.
    """
    nbytes = sum(part.nbytes for part in parts)
    mean_bytes = nbytes / len(parts)
    warm(parts)
    memory = nbytes / _seconds_to_read(parts, 1)
    told = [drop(part) for part in parts]
    dropped = sum(each is True for each in told) / len(parts)
    if dropped < 0.5:
        return ReadRates(mean_bytes, memory, None, 0.0, dropped, why_kept(parts))
    alone = _seconds_to_read(parts, 1) / len(parts)
    for part in parts:
        drop(part)
    storage = nbytes / _seconds_to_read(parts, readers)
    latency = max(0.0, alone - mean_bytes / storage)
    return ReadRates(mean_bytes, memory, storage, latency, dropped)


def why_kept(parts: Sequence[FilePart]) -> str:
    """Returns why the file cache did not forget files."""
    if any(drop(part) is None for part in parts):
        return "their file system does not tell (tmpfs, for one, keeps files in memory)"
    return "the kernel keeps them (other processes have them mapped, or they were just written)"


def warm(parts: Sequence[FilePart]) -> None:
    """Reads parts of files into the file cache."""
    for part in parts:
        _read(part)


def _seconds_to_read(parts: Sequence[FilePart], readers: int) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        for _ in pool.map(_read, parts):
            pass
    return time.perf_counter() - started


def _read(part: FilePart) -> None:
    descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = part.offset + part.nbytes
        for offset in range(part.offset, end, _CHUNK):
            os.pread(descriptor, min(_CHUNK, end - offset), offset)
    finally:
        os.close(descriptor)
