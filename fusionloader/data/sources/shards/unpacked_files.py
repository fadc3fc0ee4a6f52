"""Files of plain bytes made from compressed shards, once for all processes that want them.

A process that unpacks a shard holds a lock on the file that it writes, and gives it its name when
it is whole. What a killed process leaves has no lock, and is written again from its beginning.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fusionloader.system.user_cache import cache_folder

log = logging.getLogger("fusionloader.sources")

_FORMAT = 1  # of what is unpacked; another number has all shards unpacked again


@dataclass(frozen=True, slots=True)
class Unpacking:
    """What is to be unpacked.

    Attributes:
        source: path of the shard.
        what: what is taken of it, such as the name of a column.
        nbytes: that the result is likely to have.
        write: writes the result to an empty file.
    """

    source: str
    what: str
    nbytes: int
    write: Callable[[BinaryIO], None]


def unpacked(shards: Sequence[Unpacking], folder: str | os.PathLike[str] | None) -> list[str]:
    """Returns the paths of unpacked shards, and unpacks those that are not there.

    A shard is unpacked again when its size or time of modification changes; what was made of its
    earlier contents is removed. Several processes, such as ranks, share the work.

    Args:
        shards: one or more.
        folder: where the results are; ``None`` for ``unpacked`` in the user's cache folder.

    Raises:
        OSError: there is no room for the results, or a file cannot be read or written.
    """
    base = Path(folder) if folder is not None else cache_folder() / "unpacked"
    base.mkdir(parents=True, exist_ok=True)
    paths = [_result_path(shard, base) for shard in shards]
    missing = [pair for pair in zip(shards, paths, strict=True) if not pair[1].exists()]
    if missing:
        _check_free_space(base, [shard for shard, _ in missing])
        log.info("unpacking %d of %d shards to %s, once", len(missing), len(shards), base)
        threads = min(len(missing), len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda pair: _unpack(*pair, wait=False), missing))
        for shard, path in missing:  # those that other processes have begun
            _unpack(shard, path, wait=True)
    return [str(path) for path in paths]


def _result_path(shard: Unpacking, base: Path) -> Path:
    info = os.stat(shard.source)
    which = f"{_FORMAT}\0{os.path.realpath(shard.source)}\0{shard.what}"
    state = f"{info.st_size}\0{info.st_mtime_ns}"
    return base / f"{_digest(which)}-{_digest(state)}.bytes"


def _digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=10).hexdigest()


def _check_free_space(base: Path, shards: Sequence[Unpacking]) -> None:
    info = os.statvfs(base)
    room, needed = info.f_bavail * info.f_frsize, sum(shard.nbytes for shard in shards)
    if needed > room:
        raise _disk_full(
            base, f"{needed} bytes are needed for {len(shards)} shards, {room} are free"
        )


def _disk_full(base: Path, why: str) -> OSError:
    remedy = 'make room, or choose another disk by unpack_to="..."'
    return OSError(errno.ENOSPC, f"no room to unpack shards in {str(base)!r}: {why}; {remedy}")


def _unpack(shard: Unpacking, path: Path, *, wait: bool) -> None:
    """Makes a result, unless another process does so and ``wait`` is false."""
    while not path.exists():
        with _locked(path.with_suffix(".part"), wait) as file:
            if file is None:
                return
            if path.exists():  # made between the look and the lock
                os.unlink(file.name)
                return
            try:
                shard.write(file)
                file.flush()
            except OSError as error:
                os.unlink(file.name)
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise _disk_full(path.parent, str(error.strerror)) from error
                raise
            except BaseException:
                os.unlink(file.name)
                raise
            os.rename(file.name, path)
            _remove_earlier(path)


@contextlib.contextmanager
def _locked(part: Path, wait: bool) -> Iterator[BinaryIO | None]:
    """Gives the empty file to write to, ``None`` where another process has its lock."""
    with open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        if not _is_at(file, part):  # its last owner has renamed or removed it
            with _locked(part, wait) as again:
                yield again
            return
        file.truncate(0)
        yield file


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_earlier(path: Path) -> None:
    which = path.name.split("-")[0]
    for other in glob.glob(str(path.parent / f"{which}-*.bytes")):
        if other != str(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(other)
