"""Unpacks compressed shards to files of plain bytes, once for all processes.

A process that unpacks a shard holds a lock on the file that it writes, and renames the file when it
is complete. A file that a killed process left has no lock, and is written again from the start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fusionloader.system.limits.processors import cores_allowed
from fusionloader.system.user_cache import cache_folder

log = logging.getLogger("fusionloader.sources")

_FORMAT = 1  # format of the results; with another number all shards are unpacked again
_UNUSED_SECONDS = 7 * 24 * 3600  # after which the result of an earlier state is removed


@dataclass(frozen=True, slots=True)
class Unpacking:
    """A shard to unpack.

    Attributes:
        source: path of the shard.
        what: name of the part that is unpacked, such as a column.
        nbytes: estimated size of the result.
        write: writes the result to an empty file.
    """

    source: str
    what: str
    nbytes: int
    write: Callable[[BinaryIO], None]


def unpacked(shards: Sequence[Unpacking], folder: str | os.PathLike[str] | None) -> list[str]:
    """Unpacks shards that are not unpacked yet, and returns the paths of all results.

    When the size or time of modification of a shard changes, it is unpacked again. The earlier
    result is removed when no process has opened it for a week: another machine or container may
    share the folder, and have a copy of the shard that has another time. Several processes, such as
    ranks, share the work.

    Args:
        shards: one or more shards.
        folder: folder of the results; ``None`` for ``unpacked`` in the user's cache folder.

    Raises:
        OSError: the disk is full, or a file cannot be read or written.
    """
    base = Path(folder) if folder is not None else cache_folder() / "unpacked"
    base.mkdir(parents=True, exist_ok=True)
    paths = [_result_path(shard, base) for shard in shards]
    missing = [pair for pair in zip(shards, paths, strict=True) if not _use(pair[1])]
    if missing:
        _check_free_space(base, [shard for shard, _ in missing])
        log.info("unpacking %d of %d shards to %s, once", len(missing), len(shards), base)
        threads = min(len(missing), cores_allowed())
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda pair: _unpack(*pair, wait=False), missing))
        for shard, path in missing:  # waits for those that other processes unpack
            _unpack(shard, path, wait=True)
    _remove_unused(base, paths)
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
    free, needed = info.f_bavail * info.f_frsize, sum(shard.nbytes for shard in shards)
    if needed > free:
        raise _disk_full(
            base, f"{needed} bytes are needed for {len(shards)} shards, {free} are free"
        )


def _disk_full(base: Path, why: str) -> OSError:
    remedy = 'make room, or choose another disk by unpack_to="..."'
    return OSError(errno.ENOSPC, f"no room to unpack shards in {str(base)!r}: {why}; {remedy}")


def _unpack(shard: Unpacking, path: Path, *, wait: bool) -> None:
    """Unpacks a shard. Without ``wait`` it returns if another process is doing so."""
    while not path.exists():
        with _locked(path.with_suffix(".part"), wait) as file:
            if file is None:
                return
            if path.exists():  # made after the check above and before the lock
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
            os.rename(file.name, path)  # with the lock held: waiting processes find the result


@contextlib.contextmanager
def _locked(part: Path, wait: bool) -> Iterator[BinaryIO | None]:
    """Yields the empty file to write to; ``None`` if another process has its lock."""
    with open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        if not _is_at(file, part):  # the last owner of the lock has renamed or removed it
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


def _use(path: Path) -> bool:
    """Sets the time of the last use of a result; returns whether there is one."""
    with contextlib.suppress(OSError):  # it is not there, or is another user's
        # The time of modification stays: it is the stamp of the ranges of other processes.
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    return path.exists()


def _remove_unused(base: Path, paths: Sequence[Path]) -> None:
    """Removes results of earlier states of the shards that were not used for long."""
    shards = {path.name.split("-")[0] for path in paths}
    for other in set(base.glob("*-*.bytes")).difference(paths):
        with contextlib.suppress(OSError):
            if (
                other.name.split("-")[0] in shards
                and other.stat().st_atime < time.time() - _UNUSED_SECONDS
            ):
                other.unlink()
