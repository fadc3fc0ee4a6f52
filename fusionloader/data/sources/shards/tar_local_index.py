"""The index of a local archive: read from its file, or made and written.

The file is beside the archive, or in the user's cache if that folder cannot be written to. When the
archive's size or time of modification has changed, the index is made again.

Native workers import this module for messages, so it does not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fusionloader.data.sources.shards.tar_index import SUFFIX, TarIndex
from fusionloader.data.sources.shards.tar_members import TarMember, UnreadableIndex, scan
from fusionloader.data.sources.shards.tar_samples import MemberChoice, has_targets
from fusionloader.data.sources.shards.wds2idx import parse_wds2idx
from fusionloader.system.user_cache import cache_folder

log = logging.getLogger("fusionloader.sources")


@dataclass(frozen=True, slots=True, eq=False)
class LocalIndex:
    """The index of an archive and its file.

    Attributes:
        index: the index.
        path: path of its file; ``None`` if it could not be written.
    """

    index: TarIndex
    path: str | None


def local_index(shard: str, choice: MemberChoice) -> LocalIndex:
    """Returns the index of an archive, with the targets of its samples.

    Args:
        shard: path of the archive.
        choice: choice of the members whose small contents the index must have.

    Raises:
        ShardError: the archive is damaged, cut off or compressed.
        OSError: it cannot be read.
    """
    info = os.stat(shard)
    for path in _candidate_paths(shard):
        index = _read_cached(path)
        if index is None or (index.shard_bytes, index.shard_version) != (
            info.st_size,
            info.st_mtime_ns,
        ):
            continue
        if has_targets(index, choice):
            return LocalIndex(index, str(path))
    index = TarIndex.from_members(_members(shard, choice), info.st_size, info.st_mtime_ns)
    return LocalIndex(index, _write_cached(index, shard))


class MemberNames:
    """Names samples by their members: ``train-003.tar: cats/5.jpg``."""

    def __init__(self, indexes: dict[str, str | None]) -> None:
        """``indexes`` are the paths of the archives' indexes, by path of the archive."""
        self._indexes = indexes

    def name(self, file: str, offset: int, item: int) -> str:
        # Names are looked up for each message, since storing them would take memory.
        path = self._indexes.get(file)
        found = None if path is None else _read_member_name(path, offset)
        return f"{os.path.basename(file)}: {found or f'byte {offset}'}"


def _read_member_name(path: str, offset: int) -> str | None:
    index = _read_cached(Path(path))
    return None if index is None else index.name_at(offset)


def _candidate_paths(shard: str) -> list[Path]:
    digest = hashlib.blake2b(os.fsencode(os.path.realpath(shard)), digest_size=16).hexdigest()
    return [Path(shard + SUFFIX), cache_folder() / "indexes" / (digest + SUFFIX)]


def _read_cached(path: Path) -> TarIndex | None:
    try:
        return TarIndex.from_bytes(path.read_bytes(), str(path))
    except OSError:
        return None
    except UnreadableIndex as error:
        log.warning("the index is made again: %s", error)
        return None


def _members(shard: str, choice: MemberChoice) -> list[TarMember]:
    fd = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
    try:
        other = Path(shard).with_name(Path(shard).name.split(".")[0] + ".idx")
        if (members := parse_wds2idx(other, shard, fd, choice.inline)) is not None:
            return members
        scanning = scan(shard, os.fstat(fd).st_size, choice.inline)
        try:
            wanted = next(scanning)
            while True:
                wanted = scanning.send(os.pread(fd, wanted.nbytes, wanted.offset))
        except StopIteration as end:
            found: list[TarMember] = end.value
            return found
    finally:
        os.close(fd)


def _write_cached(index: TarIndex, shard: str) -> str | None:
    """Writes an index to the first folder that can be written to; returns its path."""
    data = index.to_bytes()
    for path in _candidate_paths(shard):
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
            return str(path)
    log.warning("the index of %r cannot be kept: no folder for it can be written to", shard)
    return None


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file as a whole or not at all; other processes may do the same."""
    fd, part = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
