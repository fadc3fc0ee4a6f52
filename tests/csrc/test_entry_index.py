"""Entry indexes of damaged files, and of other files; of sound ones test_window_decoder."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from native_samples import jpeg, photo, pillow_pixels
from window_trials import BEST, LIBJPEG, READERS, part, restarts, some_window

from fusionloader._native import testing

READER = READERS[BEST]
ENTRY = np.dtype([("bit", np.uint32), ("predictors", np.int16, 3), ("unused", np.uint16)])


def test_entries_are_what_is_started_from():
    encoded = jpeg(photo(200, 200, 1))
    index = np.frombuffer(READER.index(encoded), ENTRY)
    assert (np.diff(index["bit"].astype(int)) > 0).all()
    below = (20, 150, 100, 50)
    expected = part(pillow_pixels(encoded), below)
    assert READER.read(encoded, *below, index.tobytes()) == expected
    moved = index.copy()
    moved["predictors"][:, 0] += 20
    assert READER.read(encoded, *below, moved.tobytes()) != expected
    assert READER.read(encoded, 0, 0, 200, 10, moved.tobytes()) == part(
        pillow_pixels(encoded), (0, 0, 200, 10)
    )


@pytest.mark.parametrize("options", [{"progressive": True}, {"keep_rgb": True, "subsampling": 0}])
def test_what_libjpeg_decodes_has_no_index(options):
    assert READER.index(jpeg(photo(90, 70, 1), **options)) is None
    assert testing.WindowReader(LIBJPEG).index(jpeg(photo(90, 70, 1))) is None


@pytest.mark.parametrize("restart", [{}, {"restart_marker_rows": 1}])
def test_a_file_damaged_anywhere_has_no_index_or_the_same_verdict(restart):
    original = jpeg(photo(120, 90, 4), **restart)
    begin, random = original.index(b"\xff\xda"), Random(2)
    indexed = 0
    for _ in range(600):
        changed = bytearray(original)
        changed[random.randrange(begin, len(changed) - 2)] ^= random.randrange(1, 256)
        data = bytes(changed)
        index = READER.index(data)
        if index is None:
            continue
        indexed += 1
        for _ in range(4):
            window = some_window(random, 120, 90)
            assert READER.read(data, *window, index) == READER.read(data, *window)
    assert 20 < indexed < 580


def test_damage_that_a_window_may_step_over_costs_the_file_its_index():
    encoded = bytearray(jpeg(photo(60, 120, 5), restart_marker_rows=1))
    assert READER.index(bytes(encoded)) is not None
    at = restarts(bytes(encoded))[0] + 12
    encoded[at : at + 4] = b"\xfe\xfd\x7f\xfe"
    assert READER.read(bytes(encoded), 0, 60, 60, 40) is not None
    assert READER.index(bytes(encoded)) is None


@pytest.mark.parametrize("restart", [{}, {"restart_marker_blocks": 3}])
def test_an_index_of_anything_else_is_harmless(restart):
    encoded = jpeg(photo(150, 130, 6), **restart)
    own = READER.index(encoded)
    random = Random(1)
    refused = 0
    for _ in range(400):
        other = bytearray(own if random.random() < 0.5 else random.randbytes(len(own)))
        for _ in range(random.randint(0, 20)):
            other[random.randrange(len(other))] = random.randrange(256)
        window = some_window(random, 150, 130)
        read = READER.read(encoded, *window, bytes(other[: random.randrange(len(other))]))
        refused += read is None
        assert read is None or len(read) == 3 * window[2] * window[3]
    assert 0 < refused < 400
