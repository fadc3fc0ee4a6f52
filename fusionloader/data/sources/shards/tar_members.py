"""The members of a tar archive, without a word about where its bytes come from.

``scan`` is a generator: it yields what it wants to see of the archive next and is sent these bytes.
A local file answers with ``pread`` of headers alone, a remote one from large blocks.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from fusionloader.data.sources.shards.tar_errors import CorruptTar, UnsupportedTar
from fusionloader.data.sources.shards.tar_header import BLOCK, TarHeader, parse_header

INLINE_BYTES = 1024
"""The content of members up to this size is kept with the index, if ``scan`` is asked to."""

_LONGEST_NAME = 1 << 20


class WantedMember(NamedTuple):
    """Bytes of the archive that are to be sent: fewer only where it ends."""

    offset: int
    nbytes: int


class TarMember(NamedTuple):
    """A regular file of the archive.

    Attributes:
        name: as it is stored.
        offset: of its first byte.
        nbytes: its size.
        content: all of it, where it was asked for and is small; else ``None``.
    """

    name: bytes
    offset: int
    nbytes: int
    content: bytes | None


Scan = Generator[WantedMember, bytes, list[TarMember]]


def scan(shard: str, shard_bytes: int, inline: frozenset[bytes] = frozenset()) -> Scan:
    """Returns the members of an archive that has been sent piece by piece.

    Args:
        shard: its path or URL, for messages.
        shard_bytes: its size.
        inline: extensions, as ``b"cls"``, of members whose content is kept if it is small.

    Raises:
        CorruptTar: the archive is damaged or cut off.
        UnsupportedTar: it has sparse files, or is compressed.
    """
    members: list[TarMember] = []
    longer = _Overrides()
    at = 0
    while at < shard_bytes:
        where = f"{shard}, byte {at}"
        block = yield WantedMember(at, BLOCK)
        if len(block) < BLOCK:
            raise CorruptTar(f"{where}: the archive ends within a header{_AGAIN}")
        header = parse_header(block, where)
        if header is None:
            break
        at += BLOCK
        header = longer.applied(header)
        if at + header.nbytes > shard_bytes:
            raise CorruptTar(
                f"{where}: {header.name.decode('utf-8', 'replace')!r} has {header.nbytes} bytes, "
                f"and the archive ends after {shard_bytes - at} of them{_AGAIN}"
            )
        if header.kind in b"LKxg":
            if header.nbytes > _LONGEST_NAME:
                raise CorruptTar(f"{where}: a name or its attributes have {header.nbytes} bytes")
            content = yield WantedMember(at, header.nbytes)
            longer.read(header, content, where)
        elif header.is_regular:
            content = None
            if header.nbytes <= INLINE_BYTES and extension(header.name) in inline:
                content = (yield WantedMember(at, header.nbytes)) if header.nbytes else b""
            members.append(TarMember(header.name, at, header.nbytes, content))
        at += header.padded
    return members


_MOST_DIGITS = 20  # of a size, which has 64 bits

_AGAIN = ": it was cut off; copy or write it again"


def extension(name: bytes) -> bytes:
    """Returns what follows the first dot of a member's base name, in lower case."""
    return name.rsplit(b"/", 1)[-1].partition(b".")[2].lower()


class _Overrides:
    """What pax records and GNU's long names say of the next member, and of all that follow."""

    def __init__(self) -> None:
        self._all: dict[bytes, bytes] = {}
        self._next: dict[bytes, bytes] = {}

    def read(self, header: TarHeader, content: bytes, where: str) -> None:
        if header.kind == b"L":
            self._next[b"path"] = content.split(b"\0", 1)[0]
        elif header.kind in (b"x", b"g"):
            found = _pax_records(content, where)
            if any(key.startswith(b"GNU.sparse") for key in found):
                raise UnsupportedTar(
                    f"{where}: a sparse file follows, whose bytes are not in one piece: write the "
                    "archive without --sparse"
                )
            (self._all if header.kind == b"g" else self._next).update(found)

    def applied(self, header: TarHeader) -> TarHeader:
        if header.kind in b"LKxg" or not (self._all or self._next):
            return header
        records = {**self._all, **self._next}
        self._next.clear()
        size = records.get(b"size", b"")
        is_number = size.isdigit() and header.is_regular
        nbytes = int(size[:_MOST_DIGITS]) if is_number else header.nbytes
        return TarHeader(records.get(b"path", header.name), nbytes, header.kind)


def _pax_records(content: bytes, where: str) -> dict[bytes, bytes]:
    """Returns the records of a pax header: ``21 path=cats/5.jpg``, each with its length."""
    records = {}
    at = 0
    while at < len(content):
        space = content.find(b" ", at, at + _MOST_DIGITS)
        length = content[at : max(space, at)]
        end = at + int(length) if length.isdigit() else 0
        record = content[space + 1 : end]
        key, equals, value = record.partition(b"=")
        if not equals or end > len(content) or not record.endswith(b"\n"):
            raise CorruptTar(f"{where}: its attributes (pax) cannot be read{_AGAIN}")
        records[key] = value[:-1]
        at = end
    return records
