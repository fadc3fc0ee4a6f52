"""Writes JPEG files of several scans from coefficients: progressive ones by any script of scans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from jpeg_writer import Frame, codes_of, packed, segment, table_of, value_bits

Grid = list[list[list[int]]]  # rows of blocks of 64 coefficients in order of coding
Cell = tuple[int, int, int]  # component, row, column
Token = tuple[int, int, int, int]  # table, symbol (or -1), bits behind it and their number


@dataclass(frozen=True)
class Scan:
    """Components, coefficients from ``first`` to ``last``, and the bits missing around it."""

    components: tuple[int, ...]
    first: int = 0
    last: int = 0
    high: int = 0
    low: int = 0
    restart_interval: int = 0
    longest_run: int = 32767


@dataclass
class Coder:
    """The tokens of a scan, as its blocks give them."""

    scan: Scan
    tokens: list[Token] = field(default_factory=list)
    predictors: dict[int, int] = field(default_factory=dict)
    run: int = 0
    refinements: list[int] = field(default_factory=list)  # of the blocks of the run

    def end_run(self) -> None:
        if self.run:
            size = self.run.bit_length() - 1
            self.tokens.append((1, size << 4, self.run - (1 << size), size))
        self.tokens += [(1, -1, bit, 1) for bit in self.refinements]
        self.run, self.refinements = 0, []

    def dc(self, component: int, table: int, block: Sequence[int]) -> None:
        value = block[0] >> self.scan.low
        if self.scan.high:
            self.tokens.append((table, -1, value & 1, 1))
            return
        bits, size = value_bits(value - self.predictors.get(component, 0))
        self.predictors[component] = value
        self.tokens.append((table, size, bits, size))

    def ac(self, block: Sequence[int]) -> None:
        scan = self.scan
        values = {k: abs(block[k]) >> scan.low for k in range(scan.first, scan.last + 1)}
        new = [k for k, value in values.items() if (value == 1 if scan.high else value)]
        zeros, refinements = 0, list[int]()
        for k, value in values.items():
            if value == 0:
                zeros += 1
                continue
            while zeros > 15 and new and k <= new[-1]:
                self.end_run()
                self.tokens += [(1, 0xF0, 0, 0), *((1, -1, bit, 1) for bit in refinements)]
                zeros, refinements = zeros - 16, []
            if scan.high and value > 1:
                refinements.append(value & 1)
                continue
            self.end_run()
            bits, size = value_bits(value if block[k] > 0 else -value)
            self.tokens.append((1, zeros << 4 | size, bits, size))
            self.tokens += [(1, -1, bit, 1) for bit in refinements]
            zeros, refinements = 0, []
        if zeros or refinements:
            self.run += 1
            self.refinements += refinements
            if self.run == scan.longest_run:
                self.end_run()


def factors_of(frame: Frame, component: int) -> tuple[int, int]:
    if len(frame.factors) == 1:
        return 1, 1
    return frame.factors[component] >> 4, frame.factors[component] & 15


def blocks_of(frame: Frame, component: int, padded: bool) -> tuple[int, int]:
    """How many blocks a component has, across and down; with those that fill up the last MCU."""
    most_h = max(factors_of(frame, i)[0] for i in range(len(frame.factors)))
    most_v = max(factors_of(frame, i)[1] for i in range(len(frame.factors)))
    h, v = factors_of(frame, component)
    if padded:
        return -(-frame.width // (8 * most_h)) * h, -(-frame.height // (8 * most_v)) * v
    return -(-frame.width * h // (8 * most_h)), -(-frame.height * v // (8 * most_v))


def mcus_of(frame: Frame, scan: Scan) -> Iterator[list[Cell]]:
    """The blocks of each MCU of a scan."""
    if len(scan.components) == 1:
        (component,) = scan.components
        across, down = blocks_of(frame, component, padded=False)
        yield from ([(component, y, x)] for y in range(down) for x in range(across))
        return
    h, v = factors_of(frame, scan.components[0])
    across, down = blocks_of(frame, scan.components[0], padded=True)
    for row in range(down // v):
        for column in range(across // h):
            yield [
                (component, row * v + y, column * h + x)
                for component in scan.components
                for h, v in [factors_of(frame, component)]
                for y in range(v)
                for x in range(h)
            ]


def write_scans(
    frame: Frame, planes: Sequence[Grid], scans: Sequence[Scan], progressive: bool = True
) -> bytes:
    """A file of padded planes of blocks, whose first coefficients are DC values."""
    out = bytearray(b"\xff\xd8")
    for number, quantiser in enumerate(frame.quantisers):
        out += segment(0xDB, bytes([number]) + bytes([quantiser]) * 64)
    size = frame.height.to_bytes(2, "big") + frame.width.to_bytes(2, "big")
    count = len(frame.factors)
    components = b"".join(bytes([i + 1, f, i > 0]) for i, f in enumerate(frame.factors))
    out += segment(0xC2 if progressive else 0xC0, b"\x08" + size + bytes([count]) + components)
    interval = 0
    for scan in scans:
        if scan.restart_interval != interval:
            interval = scan.restart_interval
            out += segment(0xDD, interval.to_bytes(2, "big"))
        out += _scan(frame, planes, scan, progressive)
    return bytes(out + b"\xff\xd9")


def _scan(frame: Frame, planes: Sequence[Grid], scan: Scan, progressive: bool) -> bytes:
    mcus = list(mcus_of(frame, scan))
    step = scan.restart_interval or len(mcus)
    pieces = [
        _tokens(planes, scan, mcus[begin : begin + step], progressive)
        for begin in range(0, len(mcus), step)
    ]
    out = bytearray()
    codes = []
    for table in (0, 1):
        counts = Counter(
            token[1] for piece in pieces for token in piece if token[0] == table and token[1] >= 0
        )
        codes.append(codes_of(counts, 1))
        if counts:
            out += segment(0xC4, bytes([table << 4]) + table_of(codes[table]))
    names = b"".join(bytes([component + 1, 0]) for component in scan.components)
    parameters = bytes([scan.first, scan.last, scan.high << 4 | scan.low])
    out += segment(0xDA, bytes([len(scan.components)]) + names + parameters)
    for number, piece in enumerate(pieces):
        if number:
            out += bytes([0xFF, 0xD0 + (number - 1) % 8])
        bits = [
            pair
            for table, symbol, value, size in piece
            for pair in ([codes[table][symbol]] if symbol >= 0 else []) + [(value, size)]
        ]
        out += packed(bits)
    return bytes(out)


def _tokens(
    planes: Sequence[Grid], scan: Scan, mcus: Sequence[list[Cell]], progressive: bool
) -> list[Token]:
    # A sequential scan has no runs of blocks.
    coder = Coder(scan)
    sequential = Coder(Scan(scan.components, 1, 63, longest_run=1), coder.tokens)
    for mcu in mcus:
        for component, row, column in mcu:
            block = planes[component][row][column]
            if scan.first == 0:
                coder.dc(component, 0, block)
            if scan.first:
                coder.ac(block)
            elif not progressive:
                sequential.ac(block)
    coder.end_run()
    return coder.tokens


def random_script(random: Random, components: int) -> list[Scan]:
    """A script that gives each bit once, in one of the orders that are allowed."""

    def options() -> dict[str, int]:
        return {
            "restart_interval": random.choice((0, 0, 0, 1, 3, 7)),
            "longest_run": random.choice((1, 2, 5, 32767)),
        }

    low = random.choice((0, 0, 1, 2))
    everything = tuple(range(components))
    grouped = random.choice([[everything], [(i,) for i in everything]])
    if components == 3 and random.random() < 0.3:
        grouped = [(0,), (1, 2)]
    scans = [Scan(group, 0, 0, 0, low, **options()) for group in grouped]
    # What is to come of each component: scans that follow one another.
    waiting = [
        [Scan(group, 0, 0, high, high - 1, **options()) for high in range(low, 0, -1)]
        for group in grouped
    ]
    for component in everything:
        cuts = sorted(random.sample(range(2, 64), random.choice((0, 0, 1, 2, 5))))
        bands = list(zip([1, *cuts], [*(cut - 1 for cut in cuts), 63], strict=True))
        deepest = random.choice((0, 0, 1, 2, 3))
        waiting.append(
            [Scan((component,), *band, 0, deepest, **options()) for band in bands]
            + [
                Scan((component,), *band, high, high - 1, **options())
                for high in range(deepest, 0, -1)
                for band in random.choice((bands, [(1, 63)]))
            ]
        )
    while waiting := [scans_left for scans_left in waiting if scans_left]:
        scans.append(random.choice(waiting).pop(0))
    return scans
