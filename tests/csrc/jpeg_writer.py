"""Writes baseline JPEG files from coefficients: what no encoder would choose, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

ZIGZAG = sorted(
    range(64), key=lambda i: (i // 8 + i % 8, i // 8 if (i // 8 + i % 8) % 2 else i % 8)
)
Block = Sequence[int]  # 64 coefficients in order of coding; the first is the DC difference
Coded = tuple[int, int, int]  # a symbol, its value's bits and their number


@dataclass
class Frame:
    """Size, sampling factors of the components, and quantisers of luma and chroma."""

    width: int
    height: int
    factors: tuple[int, ...] = (0x11,)
    quantisers: tuple[int, int] = (1, 1)
    restart_interval: int = 0

    @property
    def blocks(self) -> list[int]:
        """The component of each block of an MCU."""
        if len(self.factors) == 1:
            return [0]
        return [i for i, f in enumerate(self.factors) for _ in range((f >> 4) * (f & 15))]

    @property
    def mcus(self) -> int:
        most_h, most_v = self.factors[0] >> 4, self.factors[0] & 15
        if len(self.factors) == 1:
            most_h = most_v = 1
        return -(-self.width // (8 * most_h)) * -(-self.height // (8 * most_v))


def write(frame: Frame, blocks: Sequence[Block], shortest: int = 1) -> bytes:
    """A file of ``frame.mcus * len(frame.blocks)`` blocks; no code is shorter than ``shortest``."""
    coded = [[_coded(block, kind) for kind in (0, 1)] for block in blocks]
    codes = [
        codes_of(Counter(symbol for block in coded for symbol, _, _ in block[kind]), shortest)
        for kind in (0, 1)
    ]
    out = bytearray(b"\xff\xd8")
    for number, quantiser in enumerate(frame.quantisers):
        out += segment(0xDB, bytes([number]) + bytes([quantiser]) * 64)
    for kind in (0, 1):
        out += segment(0xC4, bytes([kind << 4]) + table_of(codes[kind]))
    size = frame.height.to_bytes(2, "big") + frame.width.to_bytes(2, "big")
    count = len(frame.factors)
    components = b"".join(bytes([i + 1, f, i > 0]) for i, f in enumerate(frame.factors))
    out += segment(0xC0, b"\x08" + size + bytes([count]) + components)
    if frame.restart_interval:
        out += segment(0xDD, frame.restart_interval.to_bytes(2, "big"))
    parts = b"".join(bytes([i + 1, 0]) for i in range(count))
    out += segment(0xDA, bytes([count]) + parts + b"\0\x3f\0")
    per_mcu = len(frame.blocks)
    step = (frame.restart_interval or frame.mcus) * per_mcu
    for number, begin in enumerate(range(0, len(coded), step)):
        if number:
            out += bytes([0xFF, 0xD0 + (number - 1) % 8])
        out += packed(_bits(coded[begin : begin + step], codes))
    return bytes(out + b"\xff\xd9")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def value_bits(value: int) -> tuple[int, int]:
    size = abs(value).bit_length()
    return (value if value > 0 else value + (1 << size) - 1), size


def _coded(block: Block, kind: int) -> list[Coded]:
    if kind == 0:
        bits, size = value_bits(block[0])
        return [(size, bits, size)]
    found: list[Coded] = []
    zeros = 0
    for value in block[1:]:
        if value == 0:
            zeros += 1
            continue
        found += [(0xF0, 0, 0)] * (zeros // 16)
        bits, size = value_bits(value)
        found.append((zeros % 16 << 4 | size, bits, size))
        zeros = 0
    return found + [(0, 0, 0)] * (zeros > 0)


def codes_of(counts: Counter[int], shortest: int) -> dict[int, tuple[int, int]]:
    """Symbol to code and length: one symbol of each from ``shortest`` on, all others of 16 bits."""
    codes = {}
    code, length = 0, shortest
    room = (1 << 16) - 1  # of 16 bits: all ones is no code
    for left, (symbol, _) in zip(range(len(counts) - 1, -1, -1), counts.most_common(), strict=True):
        while room - (1 << (16 - length)) < left:
            code, length = code * 2, length + 1
        codes[symbol] = (code, length)
        room -= 1 << (16 - length)
        code += 1
        if length < 16:
            code, length = code * 2, length + 1
    return codes


def table_of(codes: dict[int, tuple[int, int]]) -> bytes:
    lengths = Counter(length for _, length in codes.values())
    return bytes(lengths[i] for i in range(1, 17)) + bytes(codes)


def _bits(
    blocks: Iterable[list[list[Coded]]], codes: list[dict[int, tuple[int, int]]]
) -> Iterator[tuple[int, int]]:
    for block in blocks:
        for kind in (0, 1):
            for symbol, value, size in block[kind]:
                yield codes[kind][symbol]
                yield value, size


def packed(bits: Iterable[tuple[int, int]]) -> bytes:
    text = "".join(f"{value:0{size}b}" for value, size in bits if size)
    text += "1" * (-len(text) % 8)
    data = int(text, 2).to_bytes(len(text) // 8, "big") if text else b""
    return data.replace(b"\xff", b"\xff\0")
