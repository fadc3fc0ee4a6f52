"""The files behind samples: which they are, and whether the file cache holds them."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from fusionloader.sources.datasets import compile_dataset

_CHUNK = 1 << 20


@dataclass(slots=True)
class _Opened:
    """What is opened for reading while somebody listens; audit hooks cannot be taken out again."""

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


def files_of(dataset: Any, indices: Sequence[Any]) -> dict[Any, list[str]]:
    """Returns the files that each sample is read from; none for samples in memory.

    Of datasets other than image folders they are what Python opens in ``dataset[index]``. Files
    that native code opens (OpenCV, LMDB) are not seen.
    """
    compiled = compile_dataset(dataset)
    if compiled.kind == "folder":
        samples = compiled.samples(dataset)
        return {index: [os.fspath(samples[index][0])] for index in indices}
    if compiled.kind == "pixels" or compiled.is_remote:
        return {index: [] for index in indices}
    found = {}
    with torch.random.fork_rng(devices=[]):
        for index in indices:
            with _listening() as paths:
                dataset[index]
            found[index] = [path for path in dict.fromkeys(paths) if _is_file(path)]
    return found


def sizes_of(files: Mapping[Any, Sequence[str]]) -> dict[Any, int]:
    """Returns the bytes of each sample's files."""
    return {index: sum(map(os.path.getsize, paths)) for index, paths in files.items()}


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def drop(path: str) -> bool | None:
    """Asks the kernel to forget a file's pages; returns whether it has.

    ``None`` where the file system does not tell, as tmpfs, whose files are memory. No permission
    is needed beyond that to read the file, but pages that another process has mapped stay.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return None
        return os.fstat(descriptor).st_size == 0
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class ReadRates:
    """How fast files are read, by themselves.

    Attributes:
        mean_bytes: of a file.
        memory: bytes a second from the file cache, one reader.
        storage: bytes a second from storage, many readers; ``None`` where the cache stays.
        latency: seconds until the first byte of a file comes from storage, one reader.
        dropped: the share of the files that the file cache forgot.
        note: what is to be known about these figures; empty where nothing is.
    """

    mean_bytes: float
    memory: float
    storage: float | None
    latency: float
    dropped: float
    note: str = field(default="")


def read_rates(paths: Sequence[str], readers: int) -> ReadRates:
    """Reads files from the file cache and from storage, as far as that can be told apart.

    Raises:
        OSError: a file cannot be read.
    """
    nbytes = sum(os.path.getsize(path) for path in paths)
    mean_bytes = nbytes / len(paths)
    warm(paths)
    memory = nbytes / _seconds_to_read(paths, 1)
    told = [drop(path) for path in paths]
    dropped = sum(each is True for each in told) / len(paths)
    if dropped < 0.5:
        return ReadRates(mean_bytes, memory, None, 0.0, dropped, why_kept(paths))
    alone = _seconds_to_read(paths, 1) / len(paths)
    for path in paths:
        drop(path)
    storage = nbytes / _seconds_to_read(paths, readers)
    latency = max(0.0, alone - mean_bytes / storage)
    return ReadRates(mean_bytes, memory, storage, latency, dropped)


def why_kept(paths: Sequence[str]) -> str:
    """Returns why the file cache did not forget files."""
    if any(drop(path) is None for path in paths):
        return "their file system does not tell (tmpfs, for one, keeps files in memory)"
    return "the kernel keeps them (other processes have them mapped, or they were just written)"


def warm(paths: Sequence[str]) -> None:
    """Reads files into the file cache."""
    for path in paths:
        _read(path)


def _seconds_to_read(paths: Sequence[str], readers: int) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        for _ in pool.map(_read, paths):
            pass
    return time.perf_counter() - started


def _read(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while os.read(descriptor, _CHUNK):
            pass
    finally:
        os.close(descriptor)
