"""A header of a tar archive: 512 bytes, as POSIX ustar, GNU tar and older ones write them."""

from __future__ import annotations

from dataclasses import dataclass

from fusionloader.data.sources.shards.tar_errors import CorruptTar, UnsupportedTar

BLOCK = 512
_SPARSE = b"S"
_CHECKSUM = slice(148, 156)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}


@dataclass(frozen=True, slots=True)
class TarHeader:
    """What a header says of its member.

    Attributes:
        name: with the directory in front, as bytes.
        nbytes: of the member's content, which follows the header.
        kind: the type flag, one byte.
    """

    name: bytes
    nbytes: int
    kind: bytes

    @property
    def is_regular(self) -> bool:
        """Whether the member is a file with content of its own."""
        return self.kind in (b"0", b"\0", b"7")

    @property
    def padded(self) -> int:
        """Bytes from the end of this header to the next one."""
        return -(-self.nbytes // BLOCK) * BLOCK


def parse_header(block: bytes | memoryview, where: str) -> TarHeader | None:
    """Returns the header in a block, ``None`` for a block of zeros, which ends an archive.

    Args:
        block: 512 bytes.
        where: names the shard and the place, for messages.

    Raises:
        CorruptTar: the block is no header.
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
            f"{where}: {_text(name)!r} is a sparse file, whose bytes are not in one piece: write "
            "the archive without --sparse"
        )
    if raw[257:263] == b"ustar\0" and (prefix := raw[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    try:
        nbytes = _number(raw[124:136])
    except ValueError:
        nbytes = -1
    if nbytes < 0:
        raise CorruptTar(f"{where}: {_text(name)!r} has no size that could be read")
    return TarHeader(name, nbytes if kind not in b"123456" else 0, kind)


def _number(field: bytes) -> int:
    """Returns a number, in octal digits or, as GNU tar writes large ones, in base 256."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    return int(digits, 8) if digits else 0


def _signed_sum(raw: bytes) -> int:
    """Returns the checksum as old programs computed it, of signed characters."""
    signed = [value - 256 if value > 127 else value for value in raw]
    return sum(signed) - sum(signed[_CHECKSUM]) + 8 * ord(" ")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
