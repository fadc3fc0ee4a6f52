"""The members of a tar archive, parsed without I/O, and the errors of shards.

``scan`` is a generator: it yields the range of bytes that it needs next, and the caller sends these
bytes. A caller reads only the headers of a local file with ``pread``, and large blocks of a remote
one. Headers are those of POSIX ustar, GNU tar and older programs.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

BLOCK = 512
_SPARSE = b"S"
_CHECKSUM = slice(148, 156)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}

INLINE_BYTES = 1024
"""``scan`` returns the content of members up to this size, on request."""

_LONGEST_NAME = 1 << 20
_MOST_DIGITS = 20  # of a size, which has 64 bits
_AGAIN = ": it was cut off; copy or write it again"


class ShardError(ValueError):
    """A shard cannot be used. The message names the shard, the sample and a remedy."""


class CorruptTar(ShardError):
    """The archive is damaged or cut off, or it is not a tar archive."""


class UnsupportedTar(ShardError):
    """The archive has sparse files or is compressed, so it cannot be read by ranges."""


class BadTarSample(ShardError):
    """A sample lacks a member or has it twice, or its target cannot be parsed."""


class UnreadableIndex(ShardError):
    """An index is damaged, of another version, or of another shard."""


class WantedMember(NamedTuple):
    """The range of bytes to send to ``scan``; fewer only at the end of the archive."""

    offset: int
    nbytes: int


class TarMember(NamedTuple):
    """A regular file of the archive.

    Attributes:
        name: name as stored.
        offset: offset of the content's first byte in the archive.
        nbytes: size of the content.
        content: the content if it was requested and is small, else ``None``.
    """

    name: bytes
    offset: int
    nbytes: int
    content: bytes | None


Scan = Generator[WantedMember, bytes, list[TarMember]]


def scan(shard: str, shard_bytes: int, inline: frozenset[bytes] = frozenset()) -> Scan:
    """Yields the ranges of an archive that it needs, and returns the members.

    Args:
        shard: path or URL of the archive, for messages.
        shard_bytes: size of the archive.
        inline: extensions, such as ``b"cls"``, of members whose content is returned if it is small.

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


def extension(name: bytes) -> bytes:
    """Returns the part of a member's base name after the first dot, in lower case."""
    return name.rsplit(b"/", 1)[-1].partition(b".")[2].lower()


class _Overrides:
    """Names and sizes from pax records and GNU's long names, for the next or all later members."""

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
    """Returns the records of a pax header. Each has its own length: ``21 path=cats/5.jpg``."""
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


# ---- headers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TarHeader:
    """The header of a member.

    Attributes:
        name: name with the directory, as bytes.
        nbytes: size of the member's content, which follows the header.
        kind: type flag, one byte.
    """

    name: bytes
    nbytes: int
    kind: bytes

    @property
    def is_regular(self) -> bool:
        """Whether the member is a file with its own content, and not a link."""
        return self.kind in (b"0", b"\0", b"7")

    @property
    def padded(self) -> int:
        """Bytes from the end of this header to the next one."""
        return -(-self.nbytes // BLOCK) * BLOCK


def parse_header(block: bytes | memoryview, where: str) -> TarHeader | None:
    """Returns the header in a block; ``None`` for a block of zeros, which ends an archive.

    Args:
        block: 512 bytes.
        where: shard and offset, for messages.

    Raises:
        CorruptTar: the block is not a header.
        UnsupportedTar: the member is a sparse file, or the archive is compressed.
    """
    raw = bytes(block)
    if not any(raw):
        return None
    try:
        expected = _number(raw[_CHECKSUM])
    except ValueError:
        expected = -1
    found = sum(raw) - sum(raw[_CHECKSUM]) + 8 * ord(" ")
    if expected != found and expected != _signed_sum(raw):
        if (packed := _COMPRESSED.get(raw[:2])) is not None:
            raise UnsupportedTar(
                f"{where}: the archive is compressed ({packed}), and its members cannot be read by "
                "ranges: unpack it to a plain .tar (images in it are compressed already)"
            )
        raise CorruptTar(
            f"{where}: no tar header here (its checksum is wrong): the archive is damaged or no "
            "tar; write or copy it again"
        )
    kind = raw[156:157]
    name = raw[:100].split(b"\0", 1)[0]
    if kind == _SPARSE:
        raise UnsupportedTar(
            f"{where}: {as_text(name)!r} is a sparse file, whose bytes are not in one piece: write "
            "the archive without --sparse"
        )
    if raw[257:263] == b"ustar\0" and (prefix := raw[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    try:
        nbytes = _number(raw[124:136])
    except ValueError:
        nbytes = -1
    if nbytes < 0:
        raise CorruptTar(f"{where}: {as_text(name)!r} has no size that could be read")
    return TarHeader(name, nbytes if kind not in b"123456" else 0, kind)


def _number(field: bytes) -> int:
    """Parses a number in octal digits, or in base 256, which GNU tar uses for large numbers."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    return int(digits, 8) if digits else 0


def _signed_sum(raw: bytes) -> int:
    """Returns the checksum of old programs, which added signed characters."""
    signed = [value - 256 if value > 127 else value for value in raw]
    return sum(signed) - sum(signed[_CHECKSUM]) + 8 * ord(" ")


def as_text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
