"""Reads indexes of DALI's ``wds2idx``: ``v1.2 COUNT``, then one line per sample.

A line has extension, offset, size and name of each member. Files of version 1.1 have no names, so
their samples are named by the offset of the first member.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from fusionloader.data.sources.shards.tar_members import (
    BLOCK,
    INLINE_BYTES,
    TarMember,
    extension,
    parse_header,
)

log = logging.getLogger("fusionloader.sources")

_FIELDS = {"v1.1": 3, "v1.2": 4}


def parse_wds2idx(
    path: Path, shard: str, fd: int, inline: frozenset[bytes]
) -> list[TarMember] | None:
    """Returns the members in an index; ``None`` if there is no usable index.

    An index that is older than its archive, cannot be parsed or is of another one is not used.

    Args:
        path: path of the index.
        shard: path of the archive.
        fd: descriptor of the archive, from which small members are read.
        inline: extensions of members whose content is returned if it is small.
    """
    try:
        if os.stat(path).st_mtime_ns < os.fstat(fd).st_mtime_ns:
            log.info("%s is older than %s and is not used", path, shard)
            return None
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    end = os.fstat(fd).st_size
    try:
        members = [_with_content(member, fd, end, inline) for member in _members(text)]
        # Archives whose names differ after the first dot share the name of the index.
        for member in members[:1] + members[-1:]:
            header = parse_header(os.pread(fd, BLOCK, member.offset - BLOCK), shard)
            if header is None or header.nbytes != member.nbytes:
                raise ValueError(f"no member of {member.nbytes} bytes is at byte {member.offset}")
        return members
    except ValueError as error:
        log.warning("%s is not used, %s is read instead: %s", path, shard, error)
        return None


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields name, offset and size of each member."""
    first, *lines = text.splitlines()
    version, _, count = first.partition(" ")
    if version not in _FIELDS or int(count) != len(lines):
        raise ValueError(f"expected v1.1 or v1.2 and {len(lines)} samples, not {first!r}")
    for line in lines:
        fields = line.split(" ")
        width = _FIELDS[version]
        if len(fields) % width:
            raise ValueError(f"a name with spaces in it, or a damaged line: {line[:80]!r}")
        for at in range(0, len(fields), width):
            kind, offset, nbytes = fields[at], int(fields[at + 1]), int(fields[at + 2])
            name = fields[at + 3] if width == 4 else f"{fields[1]}.{kind}"
            yield name, offset, nbytes


def _with_content(
    member: tuple[str, int, int], fd: int, end: int, inline: frozenset[bytes]
) -> TarMember:
    name, offset, nbytes = member
    if offset < BLOCK or nbytes < 0 or offset + nbytes > end:
        raise ValueError(f"{name!r} is not within the archive")
    raw = os.fsencode(name)
    content = None
    if nbytes <= INLINE_BYTES and extension(raw) in inline:
        content = os.pread(fd, nbytes, offset)
    return TarMember(raw, offset, nbytes, content)
