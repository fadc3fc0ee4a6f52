"""Damaged files of every decoder: Pillow's pixels, or the file is left to Pillow; no crash."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from native_samples import apply, jpeg, photo, pixel_plan, saved
from PIL import Image
from support.png_files import png, with_checksums
from window_trials import BEST, LIBJPEG, READERS, decoded, encoded_as, outcome, some_window

from fusionloader._native import RunStatus
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import RandomResizedCrop

PLAN = pixel_plan(
    RandomResizedCrop(16, 16, (0.05, 1), (0.5, 2), ("bilinear",)), height=16, width=16
)


class Windows:
    """An executor's own decoding of a JPEG, of a window that differs from file to file."""

    def __init__(self):
        self._executor = make_executor(PLAN)

    def decoded(self, encoded: bytes, index: int) -> np.ndarray | None:
        out = np.zeros((16, 16, 3), np.uint8)
        return out if self._executor.run(encoded, 3, 0, index, 0, out) is RunStatus.OK else None

    def by_pillow(self, encoded: bytes, index: int) -> np.ndarray:
        with Image.open(io.BytesIO(encoded)) as image:
            parameters = self._executor.draw(3, 0, index, 0, *image.size)
            return np.asarray(apply(image.convert("RGB"), parameters))


class Wholes:
    """Decoding whole images, which have four channels."""

    def decoded(self, encoded: bytes, index: int) -> np.ndarray | None:
        return decoded(encoded)

    def by_pillow(self, encoded: bytes, index: int) -> np.ndarray:
        with Image.open(io.BytesIO(encoded)) as image:
            return np.asarray(image if image.mode == "RGBA" else image.convert("RGB"))


@dataclass(frozen=True)
class Format:
    """Files of a format.

    Attributes:
        make: makes one of a seed.
        head: bytes at its begin of which each means something.
        accepted: how many of 1,500 changed files are decoded, at least and at most.
        decoders: what decodes them, and what Pillow makes of them.
        repaired: what is done to a changed file.
    """

    make: Callable[[int], bytes]
    head: int
    accepted: tuple[int, int]
    decoders: Callable[[], Windows | Wholes] = Wholes
    repaired: Callable[[bytes], bytes] = bytes


def _jpeg(**options):
    return Format(lambda seed: jpeg(photo(60, 45, seed), **options), 700, (50, 1450), Windows)


def _png(mode, repaired=bytes):
    def make(seed):
        image = photo(30, 20, seed).convert(mode)
        if mode == "P":
            return saved(image, "PNG")
        pixels = np.asarray(image).reshape(20, 30, -1)
        return png(pixels, split=200, before=[(b"tEXt", b"a\0b")], behind=[(b"tIME", bytes(7))])

    accepted = (50, 1450) if repaired is with_checksums else (0, 50)
    return Format(make, 80, accepted, repaired=repaired)


def _webp(alpha, **options):
    def make(seed):
        image = photo(40, 30, seed)
        if alpha:
            image.putalpha(photo(40, 30, seed + 1, colorful=False))
        return saved(image, "WEBP", **options)

    return Format(make, 64, (20, 1480))


FORMATS = {
    "jpeg": _jpeg(subsampling=2),
    "jpeg, progressive": _jpeg(progressive=True),
    "jpeg, restarts": _jpeg(restart_marker_blocks=2, subsampling=1),
    **{f"png, {mode}": _png(mode) for mode in ("RGB", "L", "RGBA", "P")},
    **{
        f"png, {mode}, checksums right": _png(mode, with_checksums) for mode in ("RGB", "L", "RGBA")
    },
    "webp": _webp(False, quality=80),
    "webp without loss": _webp(False, lossless=True),
    "webp with alpha": _webp(True, quality=80),
    "webp with alpha, without loss": _webp(True, lossless=True),
}


def was_decoded(name, decoders, encoded, index=0):
    """Whether a file is decoded; its pixels are Pillow's then."""
    found = decoders.decoded(encoded, index)
    if found is None:
        return False
    try:
        expected = decoders.by_pillow(encoded, index)
    except (OSError, SyntaxError, ValueError):  # its look at the header of JPEGs is stricter
        return name.startswith("jpeg")
    np.testing.assert_array_equal(found[..., : expected.shape[2]], expected, f"file {index}")
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_cut_anywhere_is_left_to_pillow(name):
    decoders, encoded = FORMATS[name].decoders(), FORMATS[name].make(3)
    for length in range(len(encoded) - name.startswith("webp")):  # which is filled up to be even
        assert decoders.decoded(encoded[:length], length) is None
    assert was_decoded(name, decoders, encoded), "the decoder is not as good as before"


@pytest.mark.few(6)
@pytest.mark.parametrize("name", FORMATS)
def test_whatever_bytes_change_the_pixels_are_pillow_s_or_left_to_it(name):
    kind, random = FORMATS[name], Random(6)
    decoders, original, accepted = kind.decoders(), kind.make(4), 0
    for index in range(1500):
        changed = bytearray(original)
        for _ in range(random.randint(1, 3)):
            end = kind.head if random.random() < 0.5 else len(changed)
            changed[random.randrange(end)] ^= 1 << random.randrange(8)
        accepted += was_decoded(name, decoders, kind.repaired(bytes(changed)), index)
    assert kind.accepted[0] <= accepted <= kind.accepted[1]


@pytest.mark.parametrize("name", FORMATS)
def test_a_piece_missing_from_the_middle_is_noticed_or_decoded_as_pillow_does(name):
    kind, random = FORMATS[name], Random(9)
    decoders, encoded = kind.decoders(), kind.make(5)
    left = 0
    for index in range(300):
        begin, end = sorted(random.sample(range(2, len(encoded)), 2))
        damaged = kind.repaired(encoded[:begin] + encoded[end:])
        left += not was_decoded(name, decoders, damaged, index)
    assert left > 100


@pytest.mark.parametrize("marker", [0xDB, 0xC4])
def test_a_file_without_a_table_does_not_get_the_one_of_the_file_before(marker):
    # Other tables than the usual ones, which libjpeg takes where a Huffman table is missing.
    encoded, decoders = jpeg(photo(60, 45, 6), quality=40, optimize=True), Windows()
    at = encoded.index(bytes([0xFF, marker]))
    end = at + 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
    assert was_decoded("jpeg", decoders, encoded)
    found = decoders.decoded(encoded[:at] + encoded[end:], 0)
    assert found is None or np.array_equal(
        found, decoders.by_pillow(encoded[:at] + encoded[end:], 0)
    )


def test_a_progressive_file_without_its_last_scans_is_left_to_pillow():
    encoded, decoders = jpeg(photo(60, 45, 7), progressive=True), Windows()
    scans = [at for at in range(len(encoded)) if encoded[at : at + 2] == b"\xff\xda"]
    assert was_decoded("jpeg", decoders, encoded)
    for at in scans[1:]:
        assert decoders.decoded(encoded[:at] + b"\xff\xd9", 0) is None


# ---- the decoders of JPEG alone, which say by which of them a file was read ----------------------

SCANS = {
    "4:2:0": {},
    "4:2:2": {"restart_marker_blocks": 2},
    "4:4:4": {"optimize": True},
    "grey": {"restart_marker_rows": 1},
    "4:2:0, progressive": {"progressive": True},
    "4:2:2, progressive": {"progressive": True, "restart_marker_blocks": 2},
    "4:4:4, progressive": {"progressive": True},
}


def of_scans(name: str, size: tuple[int, int], seed: int) -> bytes:
    return encoded_as(name.removesuffix(", progressive"), photo(*size, seed), **SCANS[name])


@pytest.mark.parametrize("name", SCANS)
def test_no_window_of_a_cut_file_is_read(name):
    encoded = of_scans(name, (40, 30), 3)
    for length in range(len(encoded)):
        assert READERS[BEST].read(encoded[:length], 0, 0, 8, 8) is None


@pytest.mark.few(3)
@pytest.mark.parametrize("name", SCANS)
def test_windows_of_changed_files_have_pillow_s_pixels_or_are_left_to_it(name):
    original, random = of_scans(name, (60, 45), 4), Random(7)
    outcomes = []
    for number in range(1500):
        changed = bytearray(original)
        for _ in range(random.randint(1, 3)):
            limit = len(changed) if number % 3 else min(700, len(changed))
            change = random.randrange(1, 256) if number % 2 else 1 << random.randrange(8)
            changed[random.randrange(limit)] ^= change
        data, window = bytes(changed), some_window(random, 60, 45)
        if READERS[BEST].read(data, *window) is not None and READERS[BEST].started is LIBJPEG:
            continue  # which stops at the window's end
        outcomes.append(outcome(data, window))
    assert min(outcomes.count(kind) for kind in ("decoded", "left to Pillow")) > 50
