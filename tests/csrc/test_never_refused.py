"""Files of which we say that libjpeg never refuses them: Pillow loads all of those."""

from __future__ import annotations

import io
from random import Random

import pytest
from fuzz.damaged_files import damaged
from jpeg_writer import Frame, segment
from native_samples import jpeg, photo
from PIL import Image
from scan_writer import Scan, write_scans
from test_progressive import UNUSUAL
from window_trials import data_of_scans, random_planes

from fusionloader._native import is_never_refused

KINDS = {
    "baseline": {"subsampling": 2},
    "progressive": {"subsampling": 2, "progressive": True},
    "restarts": {"subsampling": 1, "restart_marker_blocks": 2},
    "progressive, restarts": {"progressive": True, "restart_marker_blocks": 3},
}
FILES = {name: jpeg(photo(60, 45, 4), **options) for name, options in KINDS.items()}
FILES["grey"] = jpeg(photo(60, 45, 4, False), progressive=True)


def is_refused(encoded: bytes) -> bool:
    """By libjpeg, for what Pillow would load."""
    try:
        image = Image.open(io.BytesIO(encoded))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False  # not as far as libjpeg
    if image.format != "JPEG" or image.width * image.height > 1 << 20:
        return False
    try:
        image.load()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("kind", FILES)
def test_sound_files_are_never_refused(kind):
    assert is_never_refused(FILES[kind])
    assert not is_refused(FILES[kind])


def other_data(random: Random, data: bytes) -> bytes:
    """Some of a scan's data replaced by what belongs there, however wrong it is there."""
    places = [at for at in range(len(data) + 1) if data[at - 1 : at] != b"\xff"]
    begin, end = sorted(random.choices(places, k=2))
    tokens = [b"\xff\0", b"\0\0", b"\x55\xaa", b"\xff" * 3 + b"\xd1"]
    tokens += [bytes([0xFF, 0xD0 + random.randrange(8)]), bytes([random.randrange(255)])]
    inserted = b"".join(random.choices(tokens, k=random.choice((0, 1, 5, end - begin))))
    return data[:begin] + inserted + data[end:]


@pytest.mark.parametrize("kind", FILES)
def test_whatever_a_scan_has_between_its_markers_the_file_is_not_refused(kind):
    random, spans = Random(kind), list(data_of_scans(FILES[kind]))
    for _ in range(300):
        encoded = FILES[kind]
        for begin, end in sorted(random.sample(spans, random.randint(1, len(spans))), reverse=True):
            encoded = encoded[:begin] + other_data(random, encoded[begin:end]) + encoded[end:]
        assert is_never_refused(encoded)
        assert not is_refused(encoded)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("marker", [*range(0xC0, 0xD0), *range(0xD8, 0xE1), 0xF0, 0xFE, 0x01, 0x30])
def test_no_file_with_a_stray_marker_is_refused_if_we_say_so(kind, marker):
    random = Random(marker)
    encoded, said = FILES[kind], 0
    for number in range(60):
        at = random.randrange(20, len(encoded))
        body = random.choice((b"", b"\0\2", b"\0\4\0\3", b"\0\0", b"\xff\xff"))
        changed = encoded[:at] + bytes([0xFF, marker]) + body + encoded[at + number % 2 :]
        if is_never_refused(changed):
            said += 1
            assert not is_refused(changed), (number, at)
    assert said < 60


def test_no_damaged_file_is_refused_if_we_say_so():
    random, said = Random(5), {True: 0, False: 0}
    for number in range(4000):
        encoded = damaged(random)
        found = is_never_refused(encoded)
        said[found] += 1
        assert not (found and is_refused(encoded)), number
    assert min(said.values()) > 300


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_script_that_libjpeg_only_warns_about_is_not_refused(name):
    frame = Frame(40, 30)
    encoded = write_scans(frame, random_planes(Random(2), frame, 30, 0.4), UNUSUAL[name])
    said = is_never_refused(encoded)
    assert said is (not is_refused(encoded))


LACKING = {"DC codes": (0xC4, 0x00), "AC codes": (0xC4, 0x10), "quantisers": (0xDB, 0x01)}


@pytest.mark.parametrize("name", LACKING)
def test_a_file_without_a_table_may_be_refused(name):
    encoded, (marker, slot) = FILES["progressive"], LACKING[name]
    at = encoded.index(bytes([0xFF, marker]))
    while encoded[at + 4] & 0xF1 != slot:
        at = encoded.index(bytes([0xFF, marker]), at + 1)
    changed = encoded[: at + 1] + b"\xfe" + encoded[at + 2 :]  # a comment
    assert not is_never_refused(changed)
    assert is_refused(changed)


def test_sampling_factors_that_do_not_divide_each_other_may_be_refused():
    encoded = bytearray(FILES["baseline"])
    at = encoded.index(b"\xff\xc0")
    encoded[at + 11], encoded[at + 14] = 0x31, 0x21
    assert not is_never_refused(bytes(encoded))
    assert is_refused(bytes(encoded))


@pytest.mark.parametrize(("interval", "said"), [(0, False), (60_000, True)])
def test_sums_of_differences_fit_31_bits(interval, said):
    # 70,225 blocks of a difference of up to 15 bits.
    encoded = jpeg(Image.new("L", (2120, 2120), 77), progressive=True)
    at = encoded.index(b"\xff\xc4\0")
    assert is_never_refused(encoded)
    symbols = at + 5 + 16
    changed = encoded[:symbols] + b"\x0f" + encoded[symbols + 1 :]
    changed = changed[:at] + segment(0xDD, interval.to_bytes(2, "big")) + changed[at:]
    assert is_never_refused(changed) is said


@pytest.mark.parametrize("encoded", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"\xff" * 99])
def test_what_is_no_image_is_not_said_to_be_one(encoded):
    assert not is_never_refused(encoded)


def test_many_scans_are_left_to_others():
    frame = Frame(8, 8)
    planes = random_planes(Random(2), frame, 30, 0.4)
    scans = [Scan((0,)), *(Scan((0,), k, k) for k in range(1, 64))]
    assert is_never_refused(write_scans(frame, planes, scans))
    assert not is_never_refused(write_scans(frame, planes, scans * 4))
