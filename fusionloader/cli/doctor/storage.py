"""How fast the files of a folder are read: from where they lie, and from memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fusionloader.cli.analysis.files import has_page
from fusionloader.cli.doctor.check import Check, warn_if
from fusionloader.cli.doctor.decoding import images_per_second
from fusionloader.cli.progress import Progress

MOST_FILES = 256
MOST_BYTES = 256 << 20
MOST_LISTED = 20_000
MOST_SECONDS = 10.0
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


@dataclass(frozen=True, slots=True)
class Reading:
    """Files that were read one after another."""

    files: int
    nbytes: int
    seconds: float

    @property
    def files_per_second(self) -> float:
        """Of one reader."""
        return self.files / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        rate = self.nbytes / max(self.seconds, 1e-9) / 1e6
        return f"{rate:,.0f} MB/s, {self.files_per_second:,.0f} files/s"


def checks(folder: Path) -> Iterator[Check]:
    """Yields the speed of a sample of the files, cold and warm, for one reader."""
    files = sample_of(folder)
    if not files:
        remedy = "name the folder that has your images"
        yield Check("storage", f"no files that can be read in {folder}", "warn", remedy)
        return
    where = f"{len(files)} files, {file_system(folder)}"
    yield cold_reading(files, where)
    yield Check("storage, warm", f"{read(files, 'reading from memory')} ({where})")


def cold_reading(files: list[Path], where: str) -> Check:
    """The speed of files that are not in the page cache, if they can be taken out of it."""
    dropped = [drop_from_cache(file) for file in files]
    if False in dropped:
        value = f"unknown: {dropped.count(False)} of {where}, cannot be dropped from the page cache"
        remedy = "name a folder on a disk; files that another process maps stay in the cache, too"
        return Check("storage, cold", value, "warn", remedy)
    reading, decoded = read(files, "reading cold files"), images_per_second()
    doubt = "; whether the cache was dropped cannot be seen here" if None in dropped else ""
    return warn_if(
        reading.files_per_second < decoded,
        "storage, cold",
        f"{reading} ({where}){doubt}; one core decodes {decoded:,.0f} images/s",
        "a worker waits for files: more workers than cores, a local disk, or "
        'cache=DecodedCache("8GiB")',
    )


def sample_of(folder: Path) -> list[Path]:
    """Returns at most ``MOST_FILES`` files that can be read, evenly from the first that are found.

    Together they have at most ``MOST_BYTES``, unless the first one has more.
    """
    found = sorted(islice(_files_below(folder), MOST_LISTED))
    step = max(1, len(found) // MOST_FILES)
    chosen: list[Path] = []
    nbytes = 0
    for path in found[::step][:MOST_FILES]:
        nbytes += path.stat().st_size
        if chosen and nbytes > MOST_BYTES:
            break
        chosen.append(path)
    return chosen


def _files_below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            if path.is_file() and os.access(path, os.R_OK) and path.stat().st_size:
                yield path


def read(files: list[Path], label: str) -> Reading:
    """Reads files one after another, for at most ``MOST_SECONDS``."""
    nbytes = count = 0
    began = time.perf_counter()
    with Progress(label, len(files)) as progress:
        for path in files:
            nbytes += len(path.read_bytes())
            count += 1
            progress.advance()
            if time.perf_counter() - began > MOST_SECONDS:
                break
    return Reading(count, nbytes, time.perf_counter() - began)


def drop_from_cache(path: Path) -> bool | None:
    """Takes a file out of the page cache, which needs no permission but to read it.

    What is mapped stays, and so does all of a file system in memory.

    Returns:
        Whether it is out; ``None`` where the file system does not tell.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a read-only file system has nothing to write
            os.fdatasync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        cached = has_page(handle, 0)
    finally:
        os.close(handle)
    if cached is None:
        return False if file_system(path) in _IN_MEMORY else None
    return not cached


def file_system(place: Path) -> str:
    """Returns the kind of file system that a file or folder is on: ext4, nfs4, overlay."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return "an unknown file system"
    mounts = {fields[1]: fields[2] for line in lines if len(fields := line.split()) > 2}
    above = [str(each) for each in (place.resolve(), *place.resolve().parents)]
    return next((mounts[each] for each in above if each in mounts), "an unknown file system")
