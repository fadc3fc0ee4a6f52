"""The decoder of JPEG, also at a half, a quarter and an eighth: Pillow's pixels in every window."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jpeg_writer import Frame, write
from native_samples import SIMD_LEVELS, jpeg, photo, pillow_pixels
from scan_writer import Scan, random_script, write_scans
from window_trials import (
    BEST,
    LIBJPEG,
    OWN,
    READERS,
    RESTARTS,
    SAMPLINGS,
    assert_windows,
    encoded_as,
    outcome,
    part,
    pixels_or_none,
    random_block,
    random_planes,
    reduced_pixels,
    restarts,
    some_window,
)

DENOMINATORS = (1, 2, 4, 8)  # the last three are libjpeg-turbo's scaling


def sized(denominator: int):
    side = st.integers(1, 200) if denominator == 1 else st.integers(max(denominator, 5), 170)
    return st.tuples(st.just(denominator), side, side)


@settings(max_examples=600, deadline=None)
@given(
    reduction=st.sampled_from((1, *DENOMINATORS)).flatmap(sized),
    sampling=st.sampled_from(SAMPLINGS),
    quality=st.integers(1, 100),
    scans=st.sampled_from(({}, {"optimize": True}, {"progressive": True})),
    restarts=st.sampled_from(RESTARTS),
    level=st.sampled_from(SIMD_LEVELS),
    seed=st.integers(0, 2**32),
)
def test_every_window_has_pillow_s_pixels(
    reduction, sampling, quality, scans, restarts, level, seed
):
    assume(not (scans == {"progressive": True} and sampling == "4:4:0"))  # its scans pad less
    denominator, *size = reduction
    encoded = encoded_as(sampling, photo(*size, seed % 1000), quality=quality, **scans, **restarts)
    assert_windows(encoded, Random(seed), level, denominator=denominator)
    # Fewer than three chroma samples are not interpolated: left to libjpeg. So is what is made
    # larger in one direction.
    narrow = sampling in ("4:2:2", "4:2:0") and size[0] <= 4
    one_way = denominator > 1 and sampling in ("4:2:2", "4:4:0")
    assert READERS[level].started is (LIBJPEG if narrow or one_way else OWN)
    if not narrow and scans != {"progressive": True}:
        assert len(READERS[level].index(encoded)) == 12 * ((mcus_of(sampling, *size) - 1) // 8)


def mcus_of(sampling: str, width: int, height: int) -> int:
    h = 16 if sampling in ("4:2:2", "4:2:0") else 8
    v = 16 if sampling in ("4:2:0", "4:4:0") else 8
    return -(-width // h) * -(-height // v)


FACTORS = [(0x11,), (0x11,) * 3, (0x21, 0x11, 0x11), (0x22, 0x11, 0x11)]


@pytest.mark.parametrize("denominator", DENOMINATORS)
@pytest.mark.parametrize("level", SIMD_LEVELS)
@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.few(12)
def test_any_coefficients_give_pillow_s_pixels(factors, level, denominator):
    random = Random(f"{factors} {level} {denominator}")
    least = 1 if denominator == 1 else 8
    for _ in range(60 if denominator == 1 else 40):
        width, height = random.randint(max(5, least), 60), random.randint(least, 60)
        quantisers = random.choice((1, 3, 40)), random.choice((1, 7))
        frame = Frame(width, height, factors, quantisers, random.choice((0, 0, 1, 3)))
        density = random.choice((0.03, 0.3, 1.0))
        # Sixteen of a block's columns' coefficients together stay below the limit of 5900.
        largest = int(min(1023, 5800 / max(quantisers) / 16))
        blocks = [random_block(random, largest, density) for _ in frame.blocks * frame.mcus]
        # Differences: the sum of all must stay small as well.
        for block in blocks:
            block[0] = random.randint(-1, 1)
        encoded = write(frame, blocks, random.choice((1, 1, 4, 8)))
        expected = reduced_pixels(encoded, denominator)
        window = some_window(random, expected.shape[1], expected.shape[0])
        read = READERS[level].read(encoded, *window, b"", denominator)
        assert read == part(expected, window)
        one_way = denominator > 1 and factors[0] == 0x21
        assert READERS[level].started is (LIBJPEG if one_way else OWN)


@pytest.mark.few(8)
@pytest.mark.parametrize("level", SIMD_LEVELS)
@pytest.mark.parametrize(
    ("progressive", "denominator"), [(True, 1), *((False, d) for d in DENOMINATORS)]
)
def test_impossible_magnitudes_are_left_to_pillow(progressive, denominator, level):
    random = Random(3)
    outcomes = []
    for _ in range(100):
        frame = Frame(40, 24, (0x22, 0x11, 0x11), (random.choice((1, 4, 255)),) * 2)
        largest = random.choice((60, 500, 1500, 2047, 8000 if progressive else 32767))
        if progressive:
            planes = random_planes(random, frame, largest, 0.1)
            encoded = write_scans(frame, planes, random_script(random, 3))
        else:
            blocks = [random_block(random, largest, 0.1) for _ in frame.blocks * frame.mcus]
            encoded = write(frame, blocks)
        window = (0, 0, 40 // denominator, 24 // denominator)
        outcomes.append(outcome(encoded, window, level, denominator))
    assert min(outcomes.count(kind) for kind in ("decoded", "left to Pillow")) > 8


@pytest.mark.parametrize("level", SIMD_LEVELS)
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mean", [511, 512, -512, -513, 700, -700])
def test_a_mean_that_libjpeg_wraps_around_is_not_decoded_to_another_one(level, progressive, mean):
    """Its one sample of a block wraps at 512, where that of eight by eight is at its limit."""
    frame = Frame(24, 8, (0x11,), (8, 8))
    grey, ours = [0] * 64, [mean] + [0] * 63
    if progressive:
        encoded = write_scans(frame, [[[grey, ours, grey]]], [Scan((0,)), Scan((0,), 1, 63)])
    else:  # differences
        encoded = write(frame, [grey, ours, [-mean] + [0] * 63])
    found = outcome(encoded, (0, 0, 3, 1), level, denominator=8)
    assert (found == "decoded") == (-512 <= mean <= 511)


@pytest.mark.parametrize("sampling", ["4:2:0", "4:4:4", "grey"])
def test_files_with_tables_of_their_own_do_not_disturb_each_other(sampling):
    files = [
        encoded_as(sampling, photo(70, 50, seed), quality=95 - 9 * seed, optimize=seed % 3 > 0)
        for seed in range(10)
    ]
    reader, random = READERS[BEST], Random(1)
    for _ in range(60):
        encoded, window = random.choice(files), some_window(random, 70, 50)
        assert reader.read(encoded, *window) == part(pillow_pixels(encoded), window)


@pytest.mark.parametrize("sampling", ["4:1:1", "RGB"])
def test_other_layouts_are_left_to_libjpeg(sampling):
    encoded = encoded_as(sampling, photo(90, 70, 1))
    reader = READERS[BEST]
    assert reader.read(encoded, 5, 6, 50, 40) == part(pillow_pixels(encoded), (5, 6, 50, 40))
    assert reader.started is LIBJPEG


# --- damage ---------------------------------------------------------------------------------------

DAMAGED = {
    "4:2:0": {},
    "4:2:2": {"restart_marker_blocks": 2},
    "4:4:4": {"optimize": True},
    "grey": {"restart_marker_rows": 1},
}
HEAD = (4, 3, 50, 12)  # lies above most of the damage


@pytest.mark.parametrize("sampling", DAMAGED)
def test_a_file_cut_anywhere_and_ended_is_decoded_as_far_as_it_is_whole(sampling):
    encoded = encoded_as(sampling, photo(60, 45, 3), **DAMAGED[sampling])
    begin = encoded.index(b"\xff\xda")
    cut = [encoded[:length] + b"\xff\xd9" for length in range(begin + 20, len(encoded) - 2)]
    # What is left of a cut escape or marker ends the file in another way.
    outcomes = [outcome(data, HEAD) for data in cut]
    assert outcomes[0] == "left to Pillow"
    assert outcomes[-1] == "decoded"
    assert min(outcomes.count(kind) for kind in set(outcomes)) > 50


def below_the_window(encoded: bytes, inserted: bytes) -> bytes:
    """A piece put in near the end of the scan."""
    at = len(encoded) - 40
    while encoded[at - 1] == 0xFF or encoded[at] == 0:
        at += 1
    return encoded[:at] + inserted + encoded[at:]


@pytest.mark.parametrize("marker", [0xE1, 0xDB, 0xDA, 0xC4, 0xFE, 0xDC])
def test_damage_below_the_window_is_left_to_pillow_where_it_may_raise(marker):
    encoded = jpeg(photo(60, 120, 5))
    assert outcome(encoded, HEAD) == "decoded"
    swallowed = below_the_window(encoded, bytes([0xFF, marker, 0xFF, 0xFF]))
    assert outcome(swallowed, HEAD) == "left to Pillow"
    if marker in (0xDA, 0xC4):
        assert pixels_or_none(swallowed) is None


def test_damage_below_the_window_is_no_error_where_pillow_only_warns():
    encoded = jpeg(photo(60, 120, 5))
    for inserted in (b"\xff\xd3", b"\0" * 30, b"\x55" * 7):
        assert outcome(below_the_window(encoded, inserted), HEAD) == "decoded"


def test_a_restart_marker_out_of_order_counts_up_to_the_window_s_end_alone():
    encoded = bytearray(jpeg(photo(60, 120, 5), restart_marker_rows=1))
    places = restarts(bytes(encoded))
    encoded[places[-1] + 1] ^= 3
    assert outcome(bytes(encoded), HEAD) == "decoded"
    encoded[places[0] + 1] ^= 3
    assert outcome(bytes(encoded), (0, 60, 60, 10)) == "left to Pillow"


def test_damage_between_restart_markers_above_the_window_does_not_matter():
    encoded = bytearray(jpeg(photo(60, 120, 5), restart_marker_rows=1))
    at = restarts(bytes(encoded))[0] + 12
    encoded[at : at + 4] = b"\xfe\xfd\x7f\xfe"
    assert outcome(bytes(encoded), (0, 60, 60, 40)) == "decoded"
