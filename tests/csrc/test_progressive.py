"""Files of several scans: Pillow's pixels in every window, and no others ever."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_writer import Frame
from native_samples import SIMD_LEVELS, jpeg, photo, pillow_pixels
from scan_writer import Scan, random_script, write_scans
from window_trials import (
    BEST,
    LIBJPEG,
    OWN,
    READERS,
    assert_windows,
    data_of_scans,
    outcome,
    random_planes,
)

FACTORS = {
    "grey": (0x11,),
    "4:4:4": (0x11, 0x11, 0x11),
    "4:2:2": (0x21, 0x11, 0x11),
    "4:2:0": (0x22, 0x11, 0x11),
    "4:4:0": (0x12, 0x11, 0x11),
    "4:1:1": (0x41, 0x11, 0x11),
}
SIZES = st.tuples(st.integers(1, 150), st.integers(1, 150))


@settings(max_examples=150, deadline=None)
@given(
    size=st.tuples(st.integers(5, 70), st.integers(1, 60)),
    sampling=st.sampled_from(tuple(FACTORS)),
    density=st.sampled_from((0.02, 0.2, 1.0)),
    largest=st.sampled_from((1, 5, 300)),
    level=st.sampled_from(SIMD_LEVELS),
    seed=st.integers(0, 2**32),
)
def test_any_script_of_scans_gives_pillow_s_pixels(size, sampling, density, largest, level, seed):
    random = Random(seed)
    frame = Frame(*size, FACTORS[sampling])
    planes = random_planes(random, frame, largest, density)
    script = random_script(random, len(frame.factors))
    encoded = write_scans(frame, planes, script)
    assert_windows(encoded, random, level, 2)
    assert READERS[level].started is (LIBJPEG if sampling == "4:1:1" else OWN)


@pytest.mark.few(10)
@pytest.mark.parametrize("level", SIMD_LEVELS)
@pytest.mark.parametrize("sampling", FACTORS)
def test_sequential_scans_of_one_or_two_components_give_pillow_s_pixels(sampling, level):
    random = Random(f"{sampling} {level}")
    for _ in range(20):
        frame = Frame(random.randint(5, 60), random.randint(1, 60), FACTORS[sampling])
        if len(frame.factors) == 1:
            continue
        planes = random_planes(random, frame, 200, random.choice((0.03, 0.5)))
        groups = random.choice((((0,), (1,), (2,)), ((0,), (1, 2)), ((2,), (0, 1))))
        interval = random.choice((0, 0, 1, 5))
        scans = [Scan(group, 0, 63, restart_interval=interval) for group in groups]
        encoded = write_scans(frame, planes, scans, progressive=False)
        assert_windows(encoded, random, level, 2)
        assert READERS[level].started is (LIBJPEG if sampling == "4:1:1" else OWN)


@pytest.mark.matrix
def test_runs_of_as_many_blocks_as_can_be_coded():
    frame = Frame(1608, 1600)  # 40200 blocks: more than a run may have
    planes = [[[[0] * 64 for _ in range(201)] for _ in range(200)]]
    planes[0][170][3][:4] = [90, 5, 0, -3]
    planes[0][199][200][63] = 7
    scans = [Scan((0,)), Scan((0,), 1, 63, 0, 1), Scan((0,), 1, 63, 1, 0)]
    encoded = write_scans(frame, planes, scans)
    assert len(encoded) < 20_000
    assert_windows(encoded, Random(1))
    assert READERS[BEST].started is OWN


def test_a_grey_file_between_leaves_no_colors_of_the_file_before():
    left, grey, last = (
        jpeg(photo(80, 70, 1).convert(mode), progressive=True, quality=quality)
        for mode, quality in (("RGB", 95), ("L", 90), ("RGB", 20))
    )
    reader, given_up = READERS[BEST], 0
    for place in range(len(left) - 300, len(left) - 20, 3):
        damaged = bytearray(left)
        damaged[place] ^= 0x55
        given_up += reader.read(bytes(damaged), 0, 0, 80, 70) is None
        assert reader.read(grey, 0, 0, 80, 70) is not None
        assert reader.read(last, 0, 0, 80, 70) == pillow_pixels(last).tobytes()
    assert given_up > 3  # with coefficients that were not transformed


def test_files_do_not_disturb_each_other():
    files = [
        jpeg(photo(70 - 3 * seed, 50, seed), quality=95 - 9 * seed, progressive=seed % 3 > 0)
        for seed in range(10)
    ]
    sound, random = files[1], Random(1)
    cut = sound[: len(sound) // 2] + b"\xff\xd9"
    for _ in range(60):
        assert_windows(random.choice(files), random, count=1)
        assert READERS[BEST].read(cut, 0, 0, 9, 9) is None


# --- damage ---------------------------------------------------------------------------------------

COMPLETE = (
    Scan((0,), low=1),
    Scan((0,), 1, 5, low=1),
    Scan((0,), 6, 63),
    Scan((0,), 1, 5, 1, 0),
    Scan((0,), high=1),
)
UNUSUAL = {
    "without the last AC bits": COMPLETE[:3] + COMPLETE[4:],
    "without the last DC bit": COMPLETE[:4],
    "without some coefficients": COMPLETE[:2] + COMPLETE[3:],
    "AC in front of DC": (COMPLETE[1], COMPLETE[0], *COMPLETE[2:]),
    "a scan twice": (*COMPLETE[:3], COMPLETE[2], *COMPLETE[3:]),
    "a refinement twice": (*COMPLETE, COMPLETE[3]),
    "a refinement too early": (COMPLETE[0], COMPLETE[3], *COMPLETE[1:3], COMPLETE[4]),
    "a refinement of two bits": (*COMPLETE[:3], Scan((0,), 1, 5, 2, 0), COMPLETE[4]),
    "a refinement of another band": (*COMPLETE[:3], Scan((0,), 1, 7, 1, 0), COMPLETE[4]),
    "DC and AC at once": (Scan((0,), 0, 63),),
    "more bits than there are": (Scan((0,), low=14), *COMPLETE[1:]),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_script_is_left_to_pillow(name):
    frame = Frame(40, 30)
    planes = random_planes(Random(2), frame, 30, 0.4)
    encoded = write_scans(frame, planes, COMPLETE)
    assert outcome(encoded, (3, 2, 20, 20)) == "decoded"
    assert READERS[BEST].started is OWN
    outcome(write_scans(frame, planes, UNUSUAL[name]), (3, 2, 20, 20))
    assert READERS[BEST].started is LIBJPEG


DAMAGED = {
    "4:2:0": {"subsampling": 2},
    "4:2:2, restarts": {"subsampling": 1, "restart_marker_blocks": 2},
    "4:4:4": {"subsampling": 0},
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_below_the_window_does_not_matter_in_any_scan(kind):
    encoded = bytearray(jpeg(photo(60, 120, 5), progressive=True, quality=90, **DAMAGED[kind]))
    for begin, end in list(data_of_scans(bytes(encoded))):
        at = end - 3
        assert at > begin
        while encoded[at - 1] == 0xFF or encoded[at] in (0, 0xFE, 0xFF) or encoded[at + 1] == 0:
            at -= 1
        encoded[at] ^= 1
    assert outcome(bytes(encoded), (4, 3, 50, 12)) == "decoded"
    assert READERS[BEST].started is OWN


@pytest.mark.parametrize("inserted", [b"\xff\xd3", b"\0" * 30, b"\x55" * 7, b"\xff\xff\0"])
def test_bytes_between_scans_give_pillow_s_pixels_or_are_left_to_it(inserted):
    encoded = jpeg(photo(60, 45, 5), progressive=True)
    at = 2
    outcomes = set()
    while (at := encoded.find(b"\xff\xc4", at + 1)) > 0:
        outcomes.add(outcome(encoded[:at] + inserted + encoded[at:], (4, 3, 50, 12)))
    assert outcomes


def test_a_grey_file_of_few_bytes_takes_no_large_buffers():
    encoded = bytearray(jpeg(photo(64, 64, 1, False), progressive=True))
    at = encoded.index(b"\xff\xc2")
    encoded[at + 5 : at + 9] = (9400).to_bytes(2, "big") * 2
    assert READERS[BEST].read(bytes(encoded), 0, 0, 9400, 9400) is None
